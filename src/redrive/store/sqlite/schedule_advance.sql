-- Schedule advance: go on to the next tick, in the transaction that publishes the event of this one.
-- The guard: whoever has seen another due time, or another definition, moves nothing. Instants are microseconds since 1970.
-- Differs from PostgreSQL: lists come as JSON, and there is one writer at a time, so nothing has to be locked.
update redrive_schedule
set next_at = w.next_at, last_at = coalesce(w.last_at, redrive_schedule.last_at),
    event_count = event_count + w.events, missed_count = missed_count + w.missed
from (select n.value as name, d.value as digest, e.value as expected, x.value as next_at, l.value as last_at,
             c.value as events, m.value as missed
      from json_each(:names) n
      join json_each(:digests) d on d.key = n.key
      join json_each(:expected) e on e.key = n.key
      join json_each(:next_ats) x on x.key = n.key
      join json_each(:last_ats) l on l.key = n.key
      join json_each(:event_counts) c on c.key = n.key
      join json_each(:missed_counts) m on m.key = n.key) w
where redrive_schedule.name = w.name and redrive_schedule.next_at = w.expected and redrive_schedule.digest = w.digest
  and redrive_schedule.paused_at is null
returning name
