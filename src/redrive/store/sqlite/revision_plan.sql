-- Revision: a replay with an edited payload, written down as a plan of one that waits for a second person.
insert into redrive_redrive (id, state, selection, sentence, digest, total, ready, planned_by, planned_at, expires_at,
    reason, generation, from_start, edited, max_in_flight)
select :id, 'planned', 'id:' || o.id, 'one dead letter of ' || o.target || ', with an edited payload', :digest, 1, 1, :by, :now,
       :now + cast(:keep * 1000000 as integer), :reason, :generation, :from_start, 1, 1
from redrive_outbox o
where o.id = :event_id and o.status = 'failed' and o.deleted_at is null and o.cycle = :cycle
returning id
