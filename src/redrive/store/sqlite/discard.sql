-- Discard: hide a dead letter; the row stays and can be restored.
update redrive_outbox set deleted_at = :now where id = :id and status = 'failed' and deleted_at is null
