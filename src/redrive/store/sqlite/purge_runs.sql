-- Purge runs: forget comparisons that ended long ago, a bounded number at a time.
delete from redrive_reconcile_run where id in (
    select id from redrive_reconcile_run where state <> 'running' and ended_at < :before order by ended_at limit :limit)
