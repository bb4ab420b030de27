-- Depths: how many events wait in each queue, counted up to 10,001 a lane, and for how long the oldest of them is due.
select l.queue,
       sum((select count(*) from (select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                                  and o.priority = l.priority and o.generation = l.generation order by o.due_at limit 10001))) as waiting,
       max((select (:now - o.due_at) / 1e6 from redrive_outbox o
            where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority
              and o.generation = l.generation and o.due_at <= :now
            order by o.due_at limit 1)) as oldest_due_seconds
from redrive_waiting_lane l
group by l.queue order by waiting desc, l.queue limit :limit
