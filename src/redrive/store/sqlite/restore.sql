-- Restore: take a discarded dead letter back into the quarantine.
update redrive_outbox set deleted_at = null where id = :id and status = 'failed' and deleted_at is not null
