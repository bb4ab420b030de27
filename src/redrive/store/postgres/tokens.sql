-- Tokens: all of them, the newest first.
select id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.operator_token order by id desc limit :limit::int
