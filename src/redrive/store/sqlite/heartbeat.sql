-- Heartbeat: renew the lease of everything this session holds. Guard: a session that was swept stays ended.
update redrive_session set seen_at = :now, lease_until = :now + :lease
where id = :id and ended_at is null
returning id
