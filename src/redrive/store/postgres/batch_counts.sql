-- Count the members of a batch by status: from the members themselves, so it cannot drift.
select status, count(*) as n,
       count(*) filter (where redrive.standing(status, first_failed_at, cycle) < 2) as untried,
       count(*) filter (where first_failed_at is not null or cycle > 0) as tried_again
from redrive.outbox where batch_id = :id::uuid group by status
