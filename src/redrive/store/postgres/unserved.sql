-- Unserved: queues and generations with pending events that no worker takes, counted up to 10,001 a lane.
-- `order by` leads to the index: without it, PostgreSQL read the table from its beginning until it had found enough.
select l.queue, l.generation, sum(c.n)::bigint as waiting
from redrive.waiting_lane l
cross join lateral (
    select count(*) as n from (select 1 from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
                               and o.priority = l.priority and o.generation = l.generation
                               order by o.due_at limit 10001) x) c
where not exists (
    select from redrive.session s
    where s.ended_at is null and s.lease_until > coalesce(:now::timestamptz, clock_timestamp())
      and l.queue = any(s.queues) and l.generation in (0, s.generation))
group by l.queue, l.generation order by l.queue, l.generation
