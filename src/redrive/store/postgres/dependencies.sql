-- Dependencies: everything that events may wait for, and whether any does. A name that events wait for and that has no
-- row counts as closed, so that nobody waits for it for ever.
-- The names are found by hops through the index: the number of those who wait does not matter.
with recursive waiting as (
    (select o.blocked_on as name from redrive.outbox o
     where o.status = 'blocked' and o.blocked_on is not null order by o.blocked_on limit 1)
    union all
    select (select o.blocked_on from redrive.outbox o
            where o.status = 'blocked' and o.blocked_on > w.name order by o.blocked_on limit 1)
    from waiting w where w.name is not null
), names as (
    select d.name from redrive.dependency d union select w.name from waiting w where w.name is not null
)
select n.name, coalesce(d.kind, 'dependency') as kind, coalesce(d.state, 'closed') as state,
       coalesce(d.by_hand, false) as by_hand, coalesce(d.failed_count, 0) as failed_count,
       coalesce(d.passed_count, 0) as passed_count, d.counted_at, d.opened_at, d.opened_by, d.reason,
       coalesce(d.openings, 0) as openings, d.probe_at, d.probe_event_id, d.probe_until, d.closed_at, d.released_from,
       coalesce(d.released_count, 0) as released_count,
       exists (select from waiting w where w.name = n.name) as is_waited_for,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from names n left join redrive.dependency d on d.name = n.name
order by n.name
