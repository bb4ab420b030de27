-- Schedules due: some of those whose time has come, the longest overdue first; not those that the asker cannot read.
select name, type, payload::text as payload, options::text as options, cron, every_seconds, offset_seconds, time_zone,
       catch_up, next_at, last_at, event_count, missed_count, paused_at, paused_by, digest, created_at, changed_at,
       changed_by,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.schedule
where paused_at is null and next_at <= coalesce(:now::timestamptz, clock_timestamp()) and digest <> all(:apart::text[])
order by next_at, name
limit :limit::int
