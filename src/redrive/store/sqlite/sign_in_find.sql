-- Sign in find: whose browser it is; the token decides what it may do.
select t.id, t.name, t.role, s.hash, t.created_at, t.created_by, s.expires_at, t.last_used_at, t.revoked_at, t.revoked_by,
       :now as now
from redrive_sign_in s join redrive_operator_token t on t.id = s.token_id where s.hash = :hash
