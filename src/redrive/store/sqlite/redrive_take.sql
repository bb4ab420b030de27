-- Take: wait for a redrive, and keep it for the length of a transaction: here that keeps everything.
select r.id from redrive_redrive r where r.id = :id
