-- Overview: what an operator asks first. Large counts stop at 10,001, but for dead letters, which
-- their groups count; the oldest due event is found lane by lane.
select
    (select count(*) from (select 1 from redrive.outbox where status = 'pending'
                                 order by queue, priority, generation, due_at limit 10001) x) as pending,
    (select count(*) from redrive.outbox where status = 'in_flight') as in_flight,
    (select count(*) from (select 1 from redrive.outbox where status = 'blocked' order by blocked_on, id limit 10001) x) as blocked,
    (select coalesce(sum(dead_count), 0)::bigint from redrive.failure_group)
        + (select count(*) from (select 1 from redrive.outbox where status = 'failed' and fingerprint is null and deleted_at is null
                                 limit 10001) x) as failed,
    (select count(*) from (select 1 from redrive.outbox where status = 'delivered' order by ended_at limit 10001) x) as delivered,
    (select count(*) from redrive.session where ended_at is null and lease_until > clock_timestamp()) as workers,
    (select extract(epoch from clock_timestamp() - min(greatest(first.due_at, 'epoch')))::float8 from redrive.waiting_lane l cross join lateral (
         select o.due_at from redrive.outbox o
         where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
         order by o.due_at limit 1) first
     where first.due_at <= clock_timestamp()) as oldest_due_seconds
