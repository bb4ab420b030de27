-- Told: the worker knows that these were called off.
update redrive_outbox set session_id = null
where id in (select value from json_each(:ids)) and status = 'cancelled'
