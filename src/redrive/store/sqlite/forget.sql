-- Forget: put back what this session holds in the database but not in its hands (the answer to a claim was lost).
-- Differs from PostgreSQL: the list of what is held travels as JSON.
update redrive_outbox
set status = 'pending', attempts = attempts - 1, due_at = :now
where status = 'in_flight' and session_id = :session and id not in (select value from json_each(:held))
returning id
