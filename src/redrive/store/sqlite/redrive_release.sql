-- Release: send one dead letter round again, in place: the cycle is kept, identity stays, the fence is never reset.
-- Differs from PostgreSQL: there the function redrive.release does all of it, callable from psql.
update redrive_outbox
set status = 'pending', due_at = :now, attempts = 0, lost_count = 0, deferred_count = 0, degraded = 0, cycle = cycle + 1,
    generation = :generation, priority = coalesce(:priority, priority), first_failed_at = null,
    last_error = null, error_class = null, error_type = null, safe_to_retry = null, fingerprint = null, ended_at = null,
    passed = 0,
    -- what was undone cannot be resumed
    steps_from = case when :from_start or compensation = 'done' then cycle + 1 else steps_from end, compensation = null,
    deadline_at = null,  -- somebody wants it done although the time is over
    failure_history = json_insert(
        case when json_array_length(failure_history) >= 20 then json_remove(failure_history, '$[0]')
             else failure_history end,
        '$[#]', json_object(
            'cycle', cycle, 'attempts', attempts, 'lost_count', lost_count,
            'first_failed_at', strftime('%Y-%m-%dT%H:%M:%S', first_failed_at / 1000000, 'unixepoch')
                || printf('.%06dZ', first_failed_at % 1000000),
            'failed_at', strftime('%Y-%m-%dT%H:%M:%S', ended_at / 1000000, 'unixepoch')
                || printf('.%06dZ', ended_at % 1000000),
            'last_error', last_error, 'error_class', error_class, 'error_type', error_type, 'fingerprint', fingerprint,
            'generation', generation, 'replayed_at', :at, 'replayed_by', :by, 'reason', :reason))
where id = :event_id and status = 'failed' and deleted_at is null
