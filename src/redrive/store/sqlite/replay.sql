-- Replay: send a dead letter round again, in place: the cycle is kept, identity stays, the fence is never reset.
-- Guard: only while it is a dead letter; a second operator finds it pending and is refused.
-- Differs from PostgreSQL: there the same is the function redrive.replay, callable from psql.
update redrive_outbox
set status = 'pending', due_at = :now, attempts = 0, lost_count = 0, cycle = cycle + 1,
    generation = coalesce(:generation, generation), first_failed_at = null, last_error = null,
    error_class = null, error_type = null, safe_to_retry = null, fingerprint = null, ended_at = null,
    failure_history = :failure_history
where id = :id and status = 'failed' and deleted_at is null
returning generation, cycle, source
