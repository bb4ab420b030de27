-- Schedules late: how many should have published by now, and since when the first of them.
select m.now,
       (select count(*) from (select from redrive.schedule s where s.paused_at is null and s.next_at <= m.now
                              order by s.next_at limit :limit::int) x) as late,
       (select s.next_at from redrive.schedule s where s.paused_at is null and s.next_at <= m.now
        order by s.next_at limit 1) as since
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
