-- Token create: only the hash of what was shown once is kept.
insert into redrive_operator_token (id, name, role, hash, created_at, created_by, expires_at)
values (:id, :name, :role, :hash, :now, :by, :now + cast(:seconds * 1000000 as integer))
returning id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, :now as now
