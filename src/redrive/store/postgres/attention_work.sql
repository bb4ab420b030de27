-- Attention, work: whether anybody is at work, and what there is for anybody to do. Counts stop at 10,001 a lane.
select m.now,
       (select count(*) from redrive.session where ended_at is null and lease_until > m.now) as workers,
       (select max(coalesce(ended_at, lease_until)) from redrive.session) as left_at,
       (select count(*) from (select 1 from redrive.outbox where status = 'in_flight' limit 10001) x) as in_flight,
       (select count(*) from (select 1 from redrive.outbox where status = 'blocked' order by blocked_on, id limit 10001) x) as blocked,
       (select count(*) from redrive.redrive where state = 'running') as running,
       coalesce(d.due, 0)::bigint as due, d.oldest
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
cross join lateral (
    select sum(c.n) as due, min(c.oldest) as oldest
    from redrive.waiting_lane l
    cross join lateral (
        select count(*) as n, min(x.due_at) as oldest
        from (select o.due_at from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
              and o.priority = l.priority and o.generation = 0 and o.due_at <= m.now
              order by o.due_at limit 10001) x) c
    where l.generation = 0) d
