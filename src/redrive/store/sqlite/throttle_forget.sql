-- Throttle forget: remove what is remembered of sessions that are gone.
delete from redrive_throttle_use where session_id not in (select id from redrive_session where ended_at is null)
