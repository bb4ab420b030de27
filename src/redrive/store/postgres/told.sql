-- Told: the worker knows that these were called off.
update redrive.outbox set session_id = null where id = any(:ids::uuid[]) and status = 'cancelled'
