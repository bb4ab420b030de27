-- Token revoke: from the commit on it opens nothing.
update redrive_operator_token set revoked_at = :now, revoked_by = :by where id = :id and revoked_at is null
returning id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, :now as now
