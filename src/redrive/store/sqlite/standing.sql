-- Standing: how many events are under way or blocked, and since when the first of each status stands there.
-- Counted up to 10,001. Differs from PostgreSQL: nobody here has an estimate.
select
    (select count(*) from redrive_outbox where status = 'in_flight') as in_flight,
    (select count(*) from (select 1 from redrive_outbox where status = 'blocked' order by blocked_on, id limit 10001)) as blocked,
    null as pending_estimate,
    null as blocked_estimate,
    (select count(*) from redrive_session where ended_at is null and lease_until > :now) as workers,
    (select min(due_at) from redrive_outbox where status = 'in_flight') as in_flight_since,
    (select min(due_at) from (
         select (select o.due_at from redrive_outbox o
                 where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority
                   and o.generation = l.generation and o.due_at <= :now
                 order by o.due_at limit 1) as due_at
         from redrive_waiting_lane l)) as pending_since,
    (select min(created_at) from (
         select created_at from redrive_outbox where status = 'blocked' order by blocked_on, id limit 1000)) as blocked_since,
    (select min(ended_at) from (
         select ended_at, deleted_at from redrive_outbox where status = 'failed' order by id limit 1000)
     where deleted_at is null) as failed_since,
    (select coalesce(sum(total_count), 0) from redrive_failure_group) as dead_lettered,
    :now as now
