-- Attention, queue: how many events of a queue are due, counted up to 10,001 a lane.
select coalesce(sum((select count(*) from (
           select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority
           and o.generation = l.generation and o.due_at <= :now limit 10001))), 0) as n
from redrive_waiting_lane l where l.queue = :queue
