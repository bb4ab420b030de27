-- Settle: write down one attempt that did not succeed: retry at a later time, or dead letter.
-- Guard: only by its fence, and only while the event is in flight.
-- Differs from PostgreSQL: one row a statement; the trail entry is written beside it in the same transaction.
update redrive_outbox
set status = :status,
    due_at = case when :status = 'pending' then :now + :delay else due_at end,
    first_failed_at = coalesce(first_failed_at, :now),
    last_error = :last_error, error_class = :error_class, error_type = :error_type,
    safe_to_retry = :safe_to_retry, fingerprint = :fingerprint, max_attempts = :max_attempts,
    passed = :passed,
    ended_at = case when :status = 'failed' then :now end
where id = :id and fence = :fence and status = 'in_flight'
returning id, source, status, attempts, due_at, target, ordering_key
