-- Purge batches: forget those whose members are forgotten.
delete from redrive_batch
where final_at < :before
  and not exists (select 1 from redrive_outbox o where o.batch_id = redrive_batch.id and o.batch_id is not null)
