-- Take: wait for a redrive, and keep it for the length of a transaction: what is read of it then stays so.
select r.id from redrive.redrive r where r.id = :id::uuid for update
