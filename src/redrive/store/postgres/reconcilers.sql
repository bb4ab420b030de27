-- Reconcilers: each that was ever at work, with its last run and what is open.
select c.name, c.looked_at, r.id as run_id, r.state, r.dry_run, r.ended_at, r.error,
       coalesce(f.open_count, 0) as open_count, coalesce(f.ignored_count, 0) as ignored_count,
       coalesce(f.recurring_count, 0) as recurring_count
from redrive.reconciler c
left join lateral (
    select x.* from redrive.reconcile_run x where x.name = c.name order by x.started_at desc, x.id desc limit 1) r on true
left join (
    select name, count(*) filter (where state = 'open') as open_count,
           count(*) filter (where state = 'ignored') as ignored_count,
           count(*) filter (where state = 'open' and (returned_count >= 3 or seen_count >= 5)) as recurring_count
    from redrive.finding where state <> 'healed' group by name) f on f.name = c.name
order by c.name
