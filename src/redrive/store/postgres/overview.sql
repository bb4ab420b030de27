-- Overview: what an operator asks first. Counts of what ended are estimates taken from a capped scan.
select
    (select count(*) from (select 1 from redrive.outbox where status = 'pending' limit 10001) x) as pending,
    (select count(*) from redrive.outbox where status = 'in_flight') as in_flight,
    (select count(*) from (select 1 from redrive.outbox where status = 'blocked' limit 10001) x) as blocked,
    (select count(*) from (select 1 from redrive.outbox where status = 'failed' and deleted_at is null limit 10001) x) as failed,
    (select count(*) from (select 1 from redrive.outbox where status = 'delivered' limit 10001) x) as delivered,
    (select count(*) from redrive.session where ended_at is null and lease_until > clock_timestamp()) as workers,
    (select extract(epoch from clock_timestamp() - min(due_at))::float8 from redrive.outbox
     where status = 'pending' and due_at <= clock_timestamp()) as oldest_due_seconds
