-- Purge handled: forget idempotency keys older than any event that could still be replayed.
delete from redrive_event_handled where (target, idempotency_key) in (
    select target, idempotency_key from redrive_event_handled where handled_at < :before order by handled_at limit :limit)
