-- Throttle wait: let claimed events wait that found no permit. Spends no attempt.
-- Guard: only by its fence, and only while the event is in flight. The name is that of its lane and target.
-- Differs from PostgreSQL: id and fence travel together, as one text.
update redrive_outbox
set status = 'blocked', attempts = attempts - 1,
    blocked_on = 'throttle:' || priority || ':' || generation || ':' || queue || ':' || target
where id in (select value from json_each(:ids)) and status = 'in_flight'
  and id || ':' || fence in (select value from json_each(:leases))
returning id
