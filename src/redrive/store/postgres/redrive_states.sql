-- States: how many redrives there are in each state, and how far those are that are not over.
select state, count(*) as n, sum(ready)::bigint as ready, sum(released)::bigint as released, sum(delivered)::bigint as delivered,
       sum(failed_same)::bigint as failed_same, sum(failed_other)::bigint as failed_other, sum(skipped)::bigint as skipped
from redrive.redrive group by state order by state
