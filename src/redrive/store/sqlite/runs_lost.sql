-- Lost: comparisons whose process is gone have failed.
update redrive_reconcile_run set state = 'failed', ended_at = :now, error = :error
where id in (select value from json_each(:ids)) and state = 'running'
returning id
