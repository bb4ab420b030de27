-- Read the batch that an event belongs to.
select b.* from redrive_outbox o join redrive_batch b on b.id = o.batch_id where o.id = :id
