-- Schedule write: say what a schedule is. No answer: that is what it was.
-- When only what is published has changed, the next tick stays where it is. A pause stays a pause.
insert into redrive_schedule (
    name, type, payload, options, cron, every_seconds, offset_seconds, time_zone, catch_up, next_at, digest, created_at,
    changed_at, changed_by)
values (
    :name, :type, :payload, :options, :cron, :every_seconds, :offset_seconds, :time_zone, :catch_up, :next_at, :digest,
    :now, :now, :by)
on conflict (name) do update
set type = excluded.type, payload = excluded.payload, options = excluded.options, cron = excluded.cron,
    every_seconds = excluded.every_seconds, offset_seconds = excluded.offset_seconds, time_zone = excluded.time_zone,
    catch_up = excluded.catch_up, digest = excluded.digest, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by,
    next_at = iif(redrive_schedule.cron is excluded.cron
                  and redrive_schedule.every_seconds is excluded.every_seconds
                  and redrive_schedule.offset_seconds = excluded.offset_seconds
                  and redrive_schedule.time_zone = excluded.time_zone, redrive_schedule.next_at, excluded.next_at)
where redrive_schedule.digest <> excluded.digest
returning name
