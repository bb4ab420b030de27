-- Throttle wait: let claimed events wait that found no permit. Spends no attempt.
-- Guard: only by its fence, and only while the event is in flight. The name is that of its lane and target.
update redrive.outbox o
set status = 'blocked', attempts = o.attempts - 1,
    blocked_on = 'throttle:' || o.priority || ':' || o.generation || ':' || o.queue || ':' || o.target
where o.id = any(:ids::uuid[]) and coalesce(o.status, '') = 'in_flight'
  and ((o.id, o.fence) in (select d.id, d.fence from unnest(:ids::uuid[], :fences::bigint[]) as d(id, fence))) is true
returning o.id
