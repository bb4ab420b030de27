-- Unserved: queues and generations with pending events that no worker takes.
select l.queue, l.generation, sum(c.n)::bigint as waiting
from redrive.waiting_lane l
cross join lateral (
    select count(*) as n from (select 1 from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
                               and o.priority = l.priority and o.generation = l.generation limit 10001) x) c
where not exists (
    select from redrive.session s
    where s.ended_at is null and s.lease_until > coalesce(:now::timestamptz, clock_timestamp())
      and l.queue = any(s.queues) and l.generation in (0, s.generation))
group by l.queue, l.generation order by l.queue, l.generation
