-- Lost: comparisons whose process is gone have failed.
update redrive.reconcile_run set state = 'failed', ended_at = coalesce(:now::timestamptz, clock_timestamp()), error = :error::text
where id = any(:ids::uuid[]) and state = 'running'
returning id
