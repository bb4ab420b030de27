-- Retries: of the next events of each lane that come due later, how many come within these spans, in seconds.
-- An event that has not been tried yet waits for its time; the others come back.
select s.within, count(*) filter (where f.attempts > 0) as retries, count(*) filter (where f.attempts = 0) as others
from redrive.waiting_lane l
cross join lateral (
    select o.attempts, extract(epoch from least(o.due_at, '9999-12-30 00:00:00+00') - coalesce(:now::timestamptz, clock_timestamp())) as seconds
    from redrive.outbox o
    where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
      and o.due_at > coalesce(:now::timestamptz, clock_timestamp())
    order by o.due_at limit :looked_at) f
cross join lateral (select case when f.seconds <= 10 then 10 when f.seconds <= 60 then 60 when f.seconds <= 600 then 600
                                when f.seconds <= 3600 then 3600 else 1000000000 end as within) s
group by s.within order by s.within
