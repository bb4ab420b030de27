-- Count: how many dead letters a set has, and the instant up to which it is meant.
select count(*) as n, coalesce(:now::timestamptz, clock_timestamp()) as now from redrive.outbox
where status = 'failed' and (deleted_at is not null) = :discarded::boolean {where}
