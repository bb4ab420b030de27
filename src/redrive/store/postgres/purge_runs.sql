-- Purge runs: forget comparisons that ended long ago, a bounded number at a time.
delete from redrive.reconcile_run where id = any(array(
    select id from redrive.reconcile_run where state <> 'running' and ended_at < :before::timestamptz
    order by ended_at limit :limit for update skip locked))
