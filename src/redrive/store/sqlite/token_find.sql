-- Token find: whose it is, and whether it still opens anything.
select id, name, role, hash, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, :now as now
from redrive_operator_token where hash = :hash
