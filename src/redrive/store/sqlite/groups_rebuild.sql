-- Rebuild: count the dead letters of every group that is there anew; what is answered was wrong.
update redrive_failure_group
set dead_count = (select count(*) from redrive_outbox o
                  where o.fingerprint = redrive_failure_group.fingerprint and o.status = 'failed' and o.deleted_at is null)
where dead_count <> (select count(*) from redrive_outbox o
                     where o.fingerprint = redrive_failure_group.fingerprint and o.status = 'failed' and o.deleted_at is null)
returning fingerprint, dead_count
