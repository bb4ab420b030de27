-- Approve: a second person agrees with a plan.
update redrive.redrive set approved_by = :by::text, approved_at = coalesce(:now::timestamptz, clock_timestamp()) where id = :id::uuid and state = 'planned'
returning id
