-- Resolve: groups whose last dead letter this redrive has brought through.
-- Guard: a member that failed the same way may be in another group by now, whose fingerprint has a newer version.
update redrive.failure_group
set state = 'resolved', resolved_at = coalesce(:now::timestamptz, clock_timestamp()), resolved_by = :by::text
where dead_count <= 0 and state <> 'resolved' and fingerprint in (
    select i.fingerprint from redrive.redrive_item i where i.redrive_id = :id::uuid and i.state in ('delivered', 'failed_same')
    group by i.fingerprint having count(*) filter (where i.state = 'failed_same') = 0)
returning fingerprint
