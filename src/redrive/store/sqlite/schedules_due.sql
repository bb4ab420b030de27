-- Schedules due: some of those whose time has come, the longest overdue first; not those that the asker cannot read.
-- Every row says what time it is and when the next of the others is due; when none is due, one row says only that.
with moment as materialized (select max(:now, highest) as now from redrive_clock)
select m.now,
       (select s.next_at from redrive_schedule s where s.paused_at is null and s.next_at > m.now
        order by s.next_at limit 1) as upcoming_at,
       d.name, d.type, d.payload, d.options, d.cron, d.every_seconds, d.offset_seconds, d.time_zone, d.catch_up,
       d.next_at, d.digest
from moment m
left join (
    select s.* from redrive_schedule s
    where s.paused_at is null and s.next_at <= (select now from moment)
      and s.digest not in (select value from json_each(:apart))
    order by s.next_at, s.name
    limit :limit
) d on true
