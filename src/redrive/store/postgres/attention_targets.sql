-- Attention, targets: what waits in lanes that are served, for a handler that none of their workers has. There is no
-- index by target: of each lane the first 500 that are due are looked at, and the first 500 of the next minute, where a
-- worker puts what it does not know.
select w.queue, w.generation, w.target, sum(w.waiting)::bigint as waiting, min(w.since) as since
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
cross join redrive.waiting_lane l
cross join lateral (
    select l.queue, l.generation, o.target, count(*) as waiting, min(o.created_at) as since
    from ((select f.target, f.created_at from redrive.outbox f where f.status = 'pending' and f.queue = l.queue
           and f.priority = l.priority and f.generation = l.generation and f.due_at <= m.now
           order by f.due_at limit 500)
          union all
          (select f.target, f.created_at from redrive.outbox f where f.status = 'pending' and f.queue = l.queue
           and f.priority = l.priority and f.generation = l.generation and f.due_at > m.now
           and f.due_at <= m.now + interval '1 minute'
           order by f.due_at limit 500)) o
    group by o.target) w
where exists (
    select from redrive.session s
    where s.ended_at is null and s.lease_until > m.now and l.queue = any(s.queues) and l.generation in (0, s.generation))
  and not exists (
    select from redrive.session s
    where s.ended_at is null and s.lease_until > m.now and l.queue = any(s.queues) and l.generation in (0, s.generation)
      and w.target = any(s.targets))
group by w.queue, w.generation, w.target order by w.queue, w.generation, w.target limit :limit
