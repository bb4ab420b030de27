-- Schedules due: some of those whose time has come, the longest overdue first; not those that the asker cannot read.
select name, type, payload, options, cron, every_seconds, offset_seconds, time_zone, catch_up, next_at, last_at,
       event_count, missed_count, paused_at, paused_by, digest, created_at, changed_at, changed_by,
       max(:now, (select highest from redrive_clock)) as now
from redrive_schedule
where paused_at is null and next_at <= max(:now, (select highest from redrive_clock))
  and digest not in (select value from json_each(:apart))
order by next_at, name
limit :limit
