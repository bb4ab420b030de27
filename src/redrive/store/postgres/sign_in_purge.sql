-- Sign in purge: whoever signs in takes some of the expired ones along.
delete from redrive.sign_in where hash = any(array(
    select hash from redrive.sign_in where expires_at <= coalesce(:now::timestamptz, clock_timestamp())
    limit :limit::int for update skip locked))
