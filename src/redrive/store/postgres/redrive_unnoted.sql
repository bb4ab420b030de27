-- Unnoted: redrives that released one of the next members before and have not written down yet how that ended.
-- One that is taken is left to whoever has it: waiting for it while holding ours could be waiting for each other.
select r.id as redrive_id from redrive.redrive r where r.id in (
    select i.redrive_id from redrive.redrive_item i
    where i.state = 'released' and i.event_id in (
        select n.event_id from redrive.redrive_item n
        where n.redrive_id = :id::uuid and n.state = 'ready' and not n.waits order by n.position limit :limit))
for update skip locked
