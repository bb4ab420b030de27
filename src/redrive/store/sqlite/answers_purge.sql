-- Answers purge: whoever uses a new key takes some of the expired ones along.
delete from redrive_answer
where (caller, key) in (select caller, key from redrive_answer where expires_at <= :now limit :limit)
