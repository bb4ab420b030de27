-- Count the members of a batch by group and status, some groups at a time in the order of their names.
select batch_group, count(*) as total, count(case status when 'delivered' then 1 end) as delivered,
       count(case status when 'failed' then 1 end) as failed, count(case status when 'cancelled' then 1 end) as cancelled,
       count(case when ended_at is null then 1 end) as live
from redrive_outbox where batch_id = :id and batch_id is not null and batch_group > coalesce(:after, '')
group by batch_group order by batch_group limit :limit
