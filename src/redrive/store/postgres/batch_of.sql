-- Read the batch that an event belongs to.
select b.* from redrive.outbox o join redrive.batch b on b.id = o.batch_id where o.id = :id::uuid
