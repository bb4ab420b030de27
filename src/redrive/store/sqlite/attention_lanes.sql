-- Attention, lanes: queues and generations whose due events no worker takes. Counts stop at 10,001 a priority.
select u.queue, u.generation, sum(u.waiting) as waiting, min(u.since) as since
from (select l.queue, l.generation,
             (select count(*) from (
                  select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                  and o.priority = l.priority and o.generation = l.generation and o.due_at <= :now limit 10001)) as waiting,
             (select o.due_at from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
              and o.priority = l.priority and o.generation = l.generation and o.due_at <= :now
              order by o.due_at limit 1) as since
      from redrive_waiting_lane l
      where not exists (
          select 1 from redrive_session s
          where s.ended_at is null and s.lease_until > :now and l.generation in (0, s.generation)
            and l.queue in (select value from json_each(s.queues)))) u
where u.waiting > 0
group by u.queue, u.generation order by u.queue, u.generation limit :limit
