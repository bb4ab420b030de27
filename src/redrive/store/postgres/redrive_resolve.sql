-- Resolve: groups whose last dead letter this redrive has brought through.
update redrive.failure_group
set state = 'resolved', resolved_at = coalesce(:now::timestamptz, clock_timestamp()), resolved_by = :by::text
where dead_count <= 0 and state <> 'resolved' and fingerprint in (
    select i.fingerprint from redrive.redrive_item i where i.redrive_id = :id::uuid and i.state = 'delivered')
returning fingerprint
