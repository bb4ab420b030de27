-- Schedules next: when the first of them is due, and what time it is. One look at an index.
select coalesce(:now::timestamptz, clock_timestamp()) as now,
       (select s.next_at from redrive.schedule s where s.paused_at is null and s.next_at is not null
        order by s.next_at limit 1) as next_at
