-- Throttle forget: remove what is remembered of sessions that are gone.
delete from redrive.throttle_use u
where not exists (select from redrive.session s where s.id = u.session_id and s.ended_at is null)
