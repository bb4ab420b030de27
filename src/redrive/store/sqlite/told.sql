-- Told: the handlers of these cancelled events have ended or were given up; the next of their keys may go.
update redrive_outbox set session_id = null
where id in (select value from json_each(:ids)) and status = 'cancelled' and session_id is not null
returning target, ordering_key
