-- Tokens: all of them, the newest first.
select id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, :now as now
from redrive_operator_token order by id desc limit :limit
