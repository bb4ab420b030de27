-- Findings standing: how many differences are there still, of the latest of each reconciler.
select f.name, f.kind, f.state, count(*) as n
from (select name from redrive_reconciler order by name limit :names) c
join redrive_finding f on f.id in (
    select x.id from redrive_finding x where x.name = c.name and x.state <> 'healed'
    order by x.last_seen_at desc limit :limit)
group by f.name, f.kind, f.state order by f.name, f.kind, f.state
