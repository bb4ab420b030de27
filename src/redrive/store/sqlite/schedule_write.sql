-- Schedule write: say what a schedule is. No answer: that is what it was.
-- When only what is published has changed, the next tick stays where it is. A pause stays a pause.
-- Another worker may have ticked since the time was read: then it is the tick that follows, and none comes twice.
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
    next_at = case when redrive_schedule.cron is excluded.cron
                        and redrive_schedule.every_seconds is excluded.every_seconds
                        and redrive_schedule.offset_seconds = excluded.offset_seconds
                        and redrive_schedule.time_zone = excluded.time_zone then redrive_schedule.next_at
                   when excluded.next_at <= redrive_schedule.last_at then :following_at
                   else excluded.next_at end
where redrive_schedule.digest <> excluded.digest
returning name
