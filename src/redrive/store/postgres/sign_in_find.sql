-- Sign in find: whose browser it is; the token decides what it may do.
select t.id, t.name, t.role, s.hash, t.created_at, t.created_by, s.expires_at, t.last_used_at, t.revoked_at, t.revoked_by,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.sign_in s join redrive.operator_token t on t.id = s.token_id where s.hash = :hash::text
