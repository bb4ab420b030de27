-- Attention, lanes: queues and generations whose due events no worker takes. Counts stop at 10,001 a priority.
select l.queue, l.generation, sum(c.n)::bigint as waiting, min(c.oldest) as since
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
cross join redrive.waiting_lane l
cross join lateral (
    select count(*) as n, min(x.due_at) as oldest
    from (select o.due_at from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
          and o.priority = l.priority and o.generation = l.generation and o.due_at <= m.now
          order by o.due_at limit 10001) x) c
where c.n > 0 and not exists (
    select from redrive.session s
    where s.ended_at is null and s.lease_until > m.now and l.queue = any(s.queues) and l.generation in (0, s.generation))
group by l.queue, l.generation order by l.queue, l.generation limit :limit
