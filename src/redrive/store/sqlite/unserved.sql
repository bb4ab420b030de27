-- Unserved: queues and generations with pending events that no worker takes. Finds the lanes by one index probe each.
-- Differs from PostgreSQL: the next lane is asked for column by column, as in key_walk.sql.
with recursive lane(queue, priority, generation) as (
    select o.queue, o.priority, o.generation from redrive_outbox o
    where o.seq = (select f.seq from redrive_outbox f where f.status = 'pending'
                   order by f.queue, f.priority, f.generation limit 1)
    union all
    select o.queue, o.priority, o.generation from lane l
    join redrive_outbox o on o.seq = coalesce(
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue and f.priority = l.priority
         and f.generation > l.generation order by f.generation limit 1),
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue and f.priority > l.priority
         order by f.priority, f.generation limit 1),
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue > l.queue
         order by f.queue, f.priority, f.generation limit 1))
)
select l.queue, l.generation, sum(
    (select count(*) from (select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                           and o.priority = l.priority and o.generation = l.generation limit 10001))) as waiting
from lane l
where not exists (
    select 1 from redrive_session s
    where s.ended_at is null and s.lease_until > :now and l.generation in (0, s.generation)
      and l.queue in (select value from json_each(s.queues)))
group by l.queue, l.generation order by l.queue, l.generation
