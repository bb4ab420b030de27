-- Forget: put back what this session holds in the database but not in its hands. It happens when the answer to a
-- claim was lost on the way: the rows are ours, their lease is being renewed, and nobody would ever run them.
update redrive.outbox o
set status = 'pending', attempts = o.attempts - 1, due_at = redrive.moment(:now::timestamptz)
where o.status = 'in_flight' and o.session_id = :session::uuid and o.id <> all(:held::uuid[])
returning o.id
