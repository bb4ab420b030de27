-- Depths: how many events wait in each queue, counted up to 10,001 a lane, and for how long the oldest of them is due.
select l.queue, sum(c.n)::bigint as waiting,
       max(extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - greatest(f.due_at, 'epoch')))::float8 as oldest_due_seconds
from redrive.waiting_lane l
cross join lateral (
    select count(*) as n from (select from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
                               and o.priority = l.priority and o.generation = l.generation order by o.due_at limit 10001) x) c
left join lateral (
    select o.due_at from redrive.outbox o
    where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
      and o.due_at <= coalesce(:now::timestamptz, clock_timestamp())
    order by o.due_at limit 1) f on true
group by l.queue order by waiting desc, l.queue limit :limit
