-- Check: groups whose count is not that of their dead letters, with both; no count (null) is a group that is missing.
with counted as (
    select fingerprint, count(*) as n from redrive_outbox
    where status = 'failed' and deleted_at is null and fingerprint is not null group by fingerprint
)
select g.fingerprint, g.dead_count, coalesce(c.n, 0) as counted
from redrive_failure_group g left join counted c on c.fingerprint = g.fingerprint
where g.dead_count <> coalesce(c.n, 0)
union all
select c.fingerprint, null, c.n from counted c
where not exists (select 1 from redrive_failure_group g where g.fingerprint = c.fingerprint)
order by 1
