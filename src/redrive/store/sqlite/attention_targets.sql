-- Attention, targets: what waits in lanes that are served, for a handler that none of their workers has. There is no
-- index by target: of each lane the first 500 that are due are looked at, and the first 500 of the next minute, where a
-- worker puts what it does not know.
select w.queue, w.generation, w.target, sum(w.waiting) as waiting, min(w.since) as since
from (select l.queue, l.priority, l.generation, o.target, count(*) as waiting, min(o.created_at) as since
      from redrive_waiting_lane l
      join redrive_outbox o on o.seq in (
          select * from (
              select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue
              and f.priority = l.priority and f.generation = l.generation and f.due_at <= :now
              order by f.due_at limit 500)
          union all
          select * from (
              select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue
              and f.priority = l.priority and f.generation = l.generation and f.due_at > :now
              and f.due_at <= :now + 60000000 order by f.due_at limit 500))
      group by l.queue, l.priority, l.generation, o.target) w
where exists (
    select 1 from redrive_session s
    where s.ended_at is null and s.lease_until > :now and w.generation in (0, s.generation)
      and w.queue in (select value from json_each(s.queues)))
  and not exists (
    select 1 from redrive_session s
    where s.ended_at is null and s.lease_until > :now and w.generation in (0, s.generation)
      and w.queue in (select value from json_each(s.queues)) and w.target in (select value from json_each(s.targets)))
group by w.queue, w.generation, w.target order by w.queue, w.generation, w.target limit :limit
