-- Resolve: groups whose last dead letter this redrive has brought through.
update redrive_failure_group
set state = 'resolved', resolved_at = :now, resolved_by = :by
where dead_count <= 0 and state <> 'resolved' and fingerprint in (
    select i.fingerprint from redrive_redrive_item i where i.redrive_id = :id and i.state = 'delivered')
returning fingerprint
