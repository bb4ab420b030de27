-- Token create: only the hash of what was shown once is kept.
insert into redrive.operator_token (id, name, role, hash, created_at, created_by, expires_at)
select :id::uuid, :name::text, :role::text, :hash::text, t.now, :by::text, t.now + make_interval(secs => :seconds::float8)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) t
returning id, name, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by, created_at as now
