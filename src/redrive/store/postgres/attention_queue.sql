-- Attention, queue: how many events of a queue are due, counted up to 10,001 a lane.
select coalesce(sum(c.n), 0)::bigint as n
from redrive.waiting_lane l
cross join lateral (
    select count(*) as n from (
        select 1 from redrive.outbox o where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority
        and o.generation = l.generation and o.due_at <= coalesce(:now::timestamptz, clock_timestamp())
        order by o.due_at limit 10001) x) c
where l.queue = :queue::text
