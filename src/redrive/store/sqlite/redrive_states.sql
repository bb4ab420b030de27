-- States: how many redrives there are in each state, and how far those are that are not over.
select state, count(*) as n, sum(ready) as ready, sum(released) as released, sum(delivered) as delivered,
       sum(failed_same) as failed_same, sum(failed_other) as failed_other, sum(skipped) as skipped
from redrive_redrive group by state order by state
