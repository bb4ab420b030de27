-- Turn: settle what was delivered and claim as much as there are free hands for, in one round trip.
-- Guard: a lease is settled only by its fence, and only while the event is in flight.
-- Each lane (queue, priority, generation) is scanned from where its claims have come to (see watermark.py), so that index
-- entries kept alive by somebody's held snapshot are not stepped over again and again.
-- Every table access is by `id = any(…)` or a lateral with a limit, never a join the planner may turn round: a statement
-- prepared while the table was small would go on scanning all of it (5,000/s instead of 30,000/s). For the same reason
-- `coalesce` hides the guard on the status, and `is true` keeps the fences a hashed lookup.
-- Settling comes before claiming: `take_turns` locks rows that other workers settle, and two turns that each waited for
-- the other's would never end.
-- Rows without id: candidates that stand behind another of their ordering key, for the watermark; and last what it
-- learns from: the time, the snapshot's xmin, and our own xid.
with moment as materialized (
    -- when the statement began, not clock_timestamp(): the watermark needs a time before the snapshot
    select coalesce(:now::timestamptz, statement_timestamp()) as now
), delivered as (
    update redrive.outbox o set status = 'delivered', ended_at = (select now from moment)
    where o.id = any(:ids::uuid[]) and coalesce(o.status, '') = 'in_flight'
      and ((o.id, o.fence) in (select d.id, d.fence from unnest(:ids::uuid[], :fences::bigint[]) as d(id, fence))) is true
    returning o.id, o.target, o.ordering_key
), settled as materialized (
    select count(*) as n,
           redrive.promote(array_agg(d.target) filter (where d.ordering_key is not null),
                           array_agg(d.ordering_key) filter (where d.ordering_key is not null), :now::timestamptz, false)
    from delivered d
), picked as materialized (
    select c.*
    from unnest(:queues::text[], :priorities::smallint[], :generations::bigint[], :starts::timestamptz[])
        as lane(queue, priority, generation, start)
    cross join lateral (
        select p.id, p.ordering_key, p.queue, p.priority, p.generation, p.due_at from redrive.outbox p
        where p.status = 'pending' and p.queue = lane.queue and p.priority = lane.priority
          and p.generation = lane.generation
          -- the watermark begins in 1970; a row of somebody else may not
          and p.due_at >= case when lane.start > 'epoch' then lane.start else '-infinity' end
          and p.due_at <= (select now from moment)
        order by p.due_at
        limit :want
        for update of p skip locked
    ) c
    where (select n from settled) is not null
      -- a session that was swept may claim nothing more until it has begun anew
      and exists (select from redrive.session s where s.id = :session::uuid and s.ended_at is null)
    limit :want
), first_of_key as materialized (
    select redrive.take_turns(array(select p.id from picked p where p.ordering_key is not null), :now::timestamptz) as ids
), claimed as (
    update redrive.outbox o
    set status = 'in_flight', attempts = o.attempts + 1, fence = o.fence + 1, session_id = :session::uuid,
        lease_until = null
    where o.id = any(array(
        select p.id from picked p where p.ordering_key is null union all select unnest(f.ids) from first_of_key f))
    -- Instants that Python does not have (infinity, a year before 1 or after 9999) are the nearest that it has.
    returning o.id, o.fence, o.target, o.attempts, o.lost_count, o.payload, o.type, o.queue, o.priority,
              greatest(o.due_at, '0001-01-02 00:00:00+00') as due_at,
              o.source, o.subject, o.headers, o.idempotency_key, o.retry_key, o.correlation_id, o.causation_id,
              o.ordering_key, o.generation, o.cycle,
              least(greatest(o.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') as created_at,
              case when o.deadline_at is not null
                   then least(greatest(o.deadline_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') end as deadline_at
)
select * from claimed
union all
select null, null, null, null, null, null, null, p.queue, p.priority, greatest(p.due_at, '0001-01-02 00:00:00+00'), null, null, null, null, null, null, null,
       p.ordering_key, p.generation, null, null, null
from picked p, first_of_key f where p.ordering_key is not null and p.id <> all(f.ids)
union all
select null, (select n from settled), null, null, null, null, null, null, null, (select now from moment),
       pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_xact_id()::text,
       null, null, null, null, null, null, null, null, null, null
