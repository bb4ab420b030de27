-- Read one batch.
select * from redrive_batch where id = :id
