-- Schedules next: when the first of them is due, and what time it is. One look at an index.
select max(:now, (select highest from redrive_clock)) as now,
       (select next_at from redrive_schedule where paused_at is null and next_at is not null
        order by next_at limit 1) as next_at
