-- Unblock these: let events go on that wait for nothing. Guard: they still do.
update redrive_outbox set status = 'pending', due_at = :now
where id in (select value from json_each(:ids)) and status = 'blocked' and blocked_on is null and ordering_key is null
returning id
