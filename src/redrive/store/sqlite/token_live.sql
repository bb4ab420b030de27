-- Token live: whether anybody could come in at all.
select 1 as one from redrive_operator_token where revoked_at is null and expires_at > :now limit 1
