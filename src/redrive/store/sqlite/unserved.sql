-- Unserved: queues and generations with pending events that no worker takes.
select l.queue, l.generation, sum(
    (select count(*) from (select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                           and o.priority = l.priority and o.generation = l.generation limit 10001))) as waiting
from redrive_waiting_lane l
where not exists (
    select 1 from redrive_session s
    where s.ended_at is null and s.lease_until > :now and l.generation in (0, s.generation)
      and l.queue in (select value from json_each(s.queues)))
group by l.queue, l.generation order by l.queue, l.generation
