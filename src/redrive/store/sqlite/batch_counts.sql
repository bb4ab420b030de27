-- Count the members of a batch by status: from the members themselves, so it cannot drift.
select status, count(*) as n,
       count(case when ended_at is null and first_failed_at is null and cycle = 0 then 1 end) as untried,
       count(case when first_failed_at is not null or cycle > 0 then 1 end) as tried_again
from redrive_outbox where batch_id = :id and batch_id is not null group by status
