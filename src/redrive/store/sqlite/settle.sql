-- Settle: write down one attempt that did not succeed: retry at a later time, wait for something, or dead letter.
-- Guard: only by its fence, and only while the event is in flight.
-- An attempt that spends nothing is taken back from the count; one that was not made leaves the last error as it is.
-- Differs from PostgreSQL: one row a statement; the trail entry is written beside it in the same transaction.
update redrive_outbox
set status = :status,
    due_at = case when :status = 'pending' then :now + :delay else due_at end,
    attempts = attempts - (not :spends),
    deferred_count = deferred_count + :is_round,
    blocked_on = :blocked_on,
    first_failed_at = case when :last_error = '' then first_failed_at else coalesce(first_failed_at, :now) end,
    last_error = case when :last_error = '' then last_error else :last_error end,
    error_class = case when :last_error = '' then error_class else :error_class end,
    error_type = case when :last_error = '' then error_type else :error_type end,
    safe_to_retry = case when :last_error = '' then safe_to_retry else :safe_to_retry end,
    fingerprint = coalesce(:fingerprint, fingerprint), max_attempts = coalesce(:max_attempts, max_attempts),
    passed = :passed,
    ended_at = case when :status = 'failed' then :now end
where id = :id and fence = :fence and status = 'in_flight'
returning id, source, status, attempts, due_at, target, ordering_key
