-- Dependencies: all that are known. Whether anybody waits for them is a question of its own (waited_for.sql).
select d.name, d.kind, d.state, d.by_hand, d.failed_count, d.passed_count, d.counted_at, d.opened_at, d.opened_by,
       d.reason, d.openings, d.probe_at, d.probe_event_id, d.probe_until, d.closed_at, d.released_from,
       d.released_count, false as is_waited_for, coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.dependency d
order by d.name
