-- Sign in: a browser has shown a token, and shows this from now on.
insert into redrive.sign_in (hash, token_id, began_at, expires_at)
select :hash::text, o.id, t.now, least(o.expires_at, t.now + make_interval(secs => :seconds::float8))
from redrive.operator_token o, (select coalesce(:now::timestamptz, clock_timestamp()) as now) t
where o.id = :token_id::uuid
