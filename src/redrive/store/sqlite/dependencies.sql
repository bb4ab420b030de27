-- Dependencies: everything that events may wait for, and whether any does. A name that events wait for and that has no
-- row counts as closed, so that nobody waits for it for ever.
-- The names are found by hops through the index: the number of those who wait does not matter.
with recursive waiting (name) as (
    select (select o.blocked_on from redrive_outbox o indexed by redrive_outbox_blocked
            where o.status = 'blocked' and o.blocked_on > '' order by o.blocked_on limit 1)
    union all
    select (select o.blocked_on from redrive_outbox o indexed by redrive_outbox_blocked
            where o.status = 'blocked' and o.blocked_on > w.name order by o.blocked_on limit 1)
    from waiting w where w.name is not null
), names as (
    select d.name from redrive_dependency d union select w.name from waiting w where w.name is not null
)
select n.name, coalesce(d.kind, 'dependency') as kind, coalesce(d.state, 'closed') as state,
       coalesce(d.by_hand, 0) as by_hand, coalesce(d.failed_count, 0) as failed_count,
       coalesce(d.passed_count, 0) as passed_count, d.counted_at, d.opened_at, d.opened_by, d.reason,
       coalesce(d.openings, 0) as openings, d.probe_at, d.probe_event_id, d.probe_until, d.closed_at, d.released_from,
       coalesce(d.released_count, 0) as released_count,
       n.name in (select w.name from waiting w where w.name is not null) as is_waited_for,
       :now as now
from names n left join redrive_dependency d on d.name = n.name
order by n.name
