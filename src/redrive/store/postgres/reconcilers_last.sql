-- Reconcilers, last: when each began to run, and how its last run ended.
select c.name, c.looked_at, r.state, coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.reconciler c
left join lateral (
    select x.state from redrive.reconcile_run x where x.name = c.name and x.state <> 'running'
    order by x.started_at desc limit 1) r on true
order by c.name limit :limit::int
