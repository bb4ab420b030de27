-- Put back: return leases whose attempt was not made (a stopping worker, a target unknown here). Spends no attempt.
-- Guard: only by its fence, and only while the event is in flight.
update redrive.outbox o
set status = 'pending', attempts = o.attempts - 1,
    due_at = redrive.moment(:now::timestamptz)
             + make_interval(secs => (:delays::float8[])[array_position(:ids::uuid[], o.id)])
where o.id = any(:ids::uuid[]) and coalesce(o.status, '') = 'in_flight'
  and o.fence = (:fences::bigint[])[array_position(:ids::uuid[], o.id)]
returning o.id
