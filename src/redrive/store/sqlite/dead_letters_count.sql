-- Count: how many dead letters a set has, and the instant up to which it is meant.
select count(*) as n, :now as now from redrive_outbox
where status = 'failed' and (deleted_at is not null) = :discarded {where}
