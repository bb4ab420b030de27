-- Purge batches: forget those whose members are forgotten.
delete from redrive.batch b
where b.final_at < :before::timestamptz and not exists (select from redrive.outbox o where o.batch_id = b.id)
