-- Schedule write: say what a schedule is. No answer: that is what it was.
-- When only what is published has changed, the next tick stays where it is. A pause stays a pause.
-- Another worker may have ticked since the time was read: then it is the tick that follows, and none comes twice.
insert into redrive.schedule as s (
    name, type, payload, options, cron, every_seconds, offset_seconds, time_zone, catch_up, next_at, digest, created_at,
    changed_at, changed_by)
values (
    :name::text, :type::text, (:payload::text)::json, (:options::text)::json, :cron::text, :every_seconds::float8,
    :offset_seconds::float8, :time_zone::text, :catch_up::text, :next_at::timestamptz, :digest::text,
    coalesce(:now::timestamptz, clock_timestamp()), coalesce(:now::timestamptz, clock_timestamp()), :by::text)
on conflict (name) do update
set type = excluded.type, payload = excluded.payload, options = excluded.options, cron = excluded.cron,
    every_seconds = excluded.every_seconds, offset_seconds = excluded.offset_seconds, time_zone = excluded.time_zone,
    catch_up = excluded.catch_up, digest = excluded.digest, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by,
    next_at = case when (s.cron, s.every_seconds, s.offset_seconds, s.time_zone) is not distinct from
                        (excluded.cron, excluded.every_seconds, excluded.offset_seconds, excluded.time_zone)
              then s.next_at
              when excluded.next_at <= s.last_at then :following_at::timestamptz
              else excluded.next_at end
where s.digest <> excluded.digest
returning s.name
