-- Sign in purge: whoever signs in takes some of the expired ones along.
delete from redrive_sign_in where hash in (select hash from redrive_sign_in where expires_at <= :now limit :limit)
