-- Redrives: newest first.
select r.*, :now as now,
       (select count(*) from redrive_redrive_item i indexed by redrive_redrive_item_released
        where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive_redrive r where (:before is null or r.id < :before) order by r.id desc limit :limit
