-- Reconcilers, last: when each began to run, and how its last run ended.
select c.name, c.looked_at, :now as now,
       (select x.state from redrive_reconcile_run x where x.name = c.name and x.state <> 'running'
        order by x.started_at desc limit 1) as state
from redrive_reconciler c
order by c.name limit :limit
