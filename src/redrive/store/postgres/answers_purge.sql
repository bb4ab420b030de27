-- Answers purge: whoever uses a new key takes some of the expired ones along.
delete from redrive.answer where (caller, key) in (
    select caller, key from redrive.answer where expires_at <= coalesce(:now::timestamptz, clock_timestamp())
    limit :limit::int for update skip locked)
