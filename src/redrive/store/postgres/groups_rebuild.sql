-- Rebuild: count the dead letters of every group that is there anew; what is answered was wrong.
update redrive.failure_group g
set dead_count = (select count(*) from redrive.outbox o
                  where o.fingerprint = g.fingerprint and o.status = 'failed' and o.deleted_at is null)
where dead_count <> (select count(*) from redrive.outbox o
                     where o.fingerprint = g.fingerprint and o.status = 'failed' and o.deleted_at is null)
returning fingerprint, dead_count
