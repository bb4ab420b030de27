-- Token revoke: from the commit on it opens nothing.
update redrive.operator_token set revoked_at = coalesce(:now::timestamptz, clock_timestamp()), revoked_by = :by::text
where id = :id::uuid and revoked_at is null
returning id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, revoked_at as now
