-- Put back: return leases whose attempt was not made (a stopping worker, a target unknown here). Spends no attempt.
-- Guard: only by its fence, and only while the event is in flight (`coalesce`: see turn.sql).
update redrive.outbox o
set status = 'pending', attempts = o.attempts - 1,
    due_at = coalesce(:now::timestamptz, clock_timestamp()) + make_interval(secs => b.delay)
from unnest(:ids::uuid[], :fences::bigint[], :delays::float8[]) as b(id, fence, delay)
where o.id = b.id and o.fence = b.fence and coalesce(o.status, '') = 'in_flight'
returning o.id
