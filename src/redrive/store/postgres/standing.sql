-- Standing: how many events are under way or blocked, and since when the first of each status stands there.
-- Counted up to 10,001; above that the last VACUUM or ANALYZE of the partial index has an estimate.
select
    (select count(*) from redrive.outbox where status = 'in_flight') as in_flight,
    (select count(*) from (select from redrive.outbox where status = 'blocked' order by blocked_on, id limit 10001) x) as blocked,
    (select reltuples::bigint from pg_class where oid = 'redrive.outbox_due'::regclass) as pending_estimate,
    (select reltuples::bigint from pg_class where oid = 'redrive.outbox_blocked'::regclass) as blocked_estimate,
    (select count(*) from redrive.session
     where ended_at is null and lease_until > coalesce(:now::timestamptz, clock_timestamp())) as workers,
    (select min(due_at) from redrive.outbox where status = 'in_flight') as in_flight_since,
    (select min(first.due_at) from redrive.waiting_lane l cross join lateral (
         select o.due_at from redrive.outbox o
         where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
           and o.due_at <= coalesce(:now::timestamptz, clock_timestamp())
         order by o.due_at limit 1) first) as pending_since,
    (select min(created_at) from (
         select created_at from redrive.outbox where status = 'blocked' order by blocked_on, id limit 1000) x) as blocked_since,
    (select min(ended_at) from (
         select ended_at, deleted_at from redrive.outbox where status = 'failed' order by id limit 1000) x
     where deleted_at is null) as failed_since,
    (select coalesce(sum(total_count), 0)::bigint from redrive.failure_group) as dead_lettered,
    coalesce(:now::timestamptz, clock_timestamp()) as now
