-- Attention, work: whether anybody is at work, and what there is for anybody to do. Counts stop at 10,001 a lane.
select :now as now,
       (select count(*) from redrive_session where ended_at is null and lease_until > :now) as workers,
       (select max(coalesce(ended_at, lease_until)) from redrive_session) as left_at,
       (select count(*) from (select 1 from redrive_outbox where status = 'in_flight' limit 10001)) as in_flight,
       (select count(*) from (select 1 from redrive_outbox where status = 'blocked' limit 10001)) as blocked,
       (select count(*) from redrive_redrive where state = 'running') as running,
       coalesce(sum(due), 0) as due, min(oldest) as oldest
from (select (select count(*) from (
                  select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                  and o.priority = l.priority and o.generation = 0 and o.due_at <= :now limit 10001)) as due,
             (select o.due_at from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
              and o.priority = l.priority and o.generation = 0 and o.due_at <= :now
              order by o.due_at limit 1) as oldest
      from redrive_waiting_lane l where l.generation = 0)
