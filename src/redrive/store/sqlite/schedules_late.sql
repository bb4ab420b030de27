-- Schedules late: how many should have published by now, and since when the first of them.
select m.now,
       (select count(*) from (select 1 from redrive_schedule s where s.paused_at is null and s.next_at <= m.now
                              order by s.next_at limit :limit)) as late,
       (select s.next_at from redrive_schedule s where s.paused_at is null and s.next_at <= m.now
        order by s.next_at limit 1) as since
from (select max(:now, (select highest from redrive_clock)) as now) m
