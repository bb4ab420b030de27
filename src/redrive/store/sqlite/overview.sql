-- Overview: what an operator asks first. Large counts stop at 10,001, but for dead letters, which
-- their groups count; the oldest due event is found lane by lane.
select
    (select count(*) from (select 1 from redrive_outbox where status = 'pending' limit 10001)) as pending,
    (select count(*) from redrive_outbox where status = 'in_flight') as in_flight,
    (select count(*) from (select 1 from redrive_outbox where status = 'blocked' limit 10001)) as blocked,
    (select coalesce(sum(dead_count), 0) from redrive_failure_group)
        + (select count(*) from (select 1 from redrive_outbox where status = 'failed' and fingerprint is null and deleted_at is null
                                 limit 10001)) as failed,
    -- The index is of both statuses, and SQLite sees that it may be used only when the condition is its own.
    (select count(*) from (select 1 from redrive_outbox indexed by redrive_outbox_ended
                           where status in ('delivered', 'cancelled') and status = 'delivered' limit 10001)) as delivered,
    (select count(*) from redrive_session where ended_at is null and lease_until > :now) as workers,
    (select (:now - min(due_at)) / 1e6 from (
         select (select o.due_at from redrive_outbox o
                 where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
                 order by o.due_at limit 1) as due_at
         from redrive_waiting_lane l) where due_at <= :now) as oldest_due_seconds
