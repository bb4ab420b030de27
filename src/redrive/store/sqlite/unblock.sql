-- Unblock: let the oldest of those who wait for a dependency go on, a bounded number at a time.
update redrive_outbox set status = 'pending', blocked_on = null, due_at = :now
where seq in (
    select seq from redrive_outbox indexed by redrive_outbox_blocked
    where status = 'blocked' and blocked_on = :name
    order by id limit :limit)
returning id
