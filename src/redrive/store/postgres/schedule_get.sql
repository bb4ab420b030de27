-- Schedule get: one, as it stands.
select name, type, payload::text as payload, options::text as options, cron, every_seconds, offset_seconds, time_zone,
       catch_up, next_at, last_at, event_count, missed_count, paused_at, paused_by, digest, created_at, changed_at,
       changed_by
from redrive.schedule
where name = :name::text
