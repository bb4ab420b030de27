-- Redrives of a group: the latest that were started, with how many of its members.
select r.*, :now as now, g.members,
       (select count(*) from redrive_redrive_item i indexed by redrive_redrive_item_released
        where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive_redrive_group g join redrive_redrive r on r.id = g.redrive_id
where g.fingerprint = :fingerprint and r.started_at is not null
order by g.redrive_id desc limit :limit
