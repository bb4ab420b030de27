-- Lock: take one dependency for the length of a transaction: who decides on it decides alone.
select d.name, d.kind, d.state, d.by_hand, d.failed_count, d.passed_count, d.counted_at, d.opened_at, d.opened_by,
       d.reason, d.openings, d.probe_at, d.probe_event_id, d.probe_until, d.closed_at, d.released_from,
       d.released_count, exists (select from redrive.outbox o where o.status = 'blocked' and o.blocked_on = d.name) as is_waited_for,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.dependency d
where d.name = :name::text
for update
