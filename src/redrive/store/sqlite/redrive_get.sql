-- Redrive: one of them, with the database's time.
select r.*, :now as now,
       (select count(*) from redrive_redrive_item i indexed by redrive_redrive_item_released
        where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive_redrive r where r.id = :id
