-- Heartbeat: renew the lease of everything this session holds. Guard: a session that was swept stays ended.
update redrive.session
set seen_at = coalesce(:now::timestamptz, clock_timestamp()),
    lease_until = coalesce(:now::timestamptz, clock_timestamp()) + make_interval(secs => :lease::float8)
where id = :id::uuid and ended_at is null
returning id
