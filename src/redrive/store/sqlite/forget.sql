-- Forget: put back what this session holds in the database but not in its hands (the answer to a claim was lost).
-- The fence is raised: whoever runs one of them all the same must not find the pending row it wanted under the fence it
-- had. Differs from PostgreSQL: the list of what is held travels as JSON, and a call is never carried out late.
update redrive_outbox
set status = 'pending', attempts = attempts - 1, fence = fence + 1, due_at = :now
where status = 'in_flight' and session_id = :session and id not in (select value from json_each(:held))
returning id
