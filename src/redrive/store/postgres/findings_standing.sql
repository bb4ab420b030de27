-- Findings standing: how many differences are there still, of the latest of each reconciler.
select c.name, f.kind, f.state, count(*) as n
from (select name from redrive.reconciler order by name limit :names::int) c
cross join lateral (
    select x.kind, x.state from redrive.finding x where x.name = c.name and x.state <> 'healed'
    order by x.last_seen_at desc limit :limit::int) f
group by c.name, f.kind, f.state order by c.name, f.kind, f.state
