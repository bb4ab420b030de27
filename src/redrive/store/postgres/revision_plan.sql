-- Revision: a replay with an edited payload, written down as a plan of one that waits for a second person.
insert into redrive.redrive (id, state, selection, sentence, digest, total, ready, planned_by, planned_at, expires_at,
    reason, generation, from_start, edited, max_in_flight)
select :id::uuid, 'planned', 'id:' || o.id, 'one dead letter of ' || o.target || ', with an edited payload', :digest::text, 1, 1,
       :by::text, m.now, m.now + make_interval(secs => :keep::float8), :reason::text, :generation::bigint,
       :from_start::boolean, true, 1
from redrive.outbox o cross join (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
where o.id = :event_id::uuid and o.status = 'failed' and o.deleted_at is null and o.cycle = :cycle::int
for share of o  -- its member is read by the next statement
returning id
