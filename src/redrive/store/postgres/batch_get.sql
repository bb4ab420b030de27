-- Read one batch.
select * from redrive.batch where id = :id::uuid
