-- Token live: whether anybody could come in at all.
select 1 as one from redrive.operator_token
where revoked_at is null and expires_at > coalesce(:now::timestamptz, clock_timestamp()) limit 1
