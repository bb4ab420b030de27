-- Count the members of a batch by group and status, some groups at a time in the order of their names.
select batch_group collate "C" as batch_group, count(*) as total, count(*) filter (where status = 'delivered') as delivered,
       count(*) filter (where status = 'failed') as failed, count(*) filter (where status = 'cancelled') as cancelled,
       count(*) filter (where status in ('pending', 'in_flight', 'blocked')) as live
from redrive.outbox
where batch_id = :id::uuid and batch_group is not null and batch_group collate "C" > coalesce(:after::text, '') collate "C"
group by batch_group collate "C" order by 1 limit :limit::int
