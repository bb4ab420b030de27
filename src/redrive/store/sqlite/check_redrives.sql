-- Check redrives: plans that nobody finishes, and redrives at full speed with members to release that have not moved.
select r.id, r.state, r.planned_at, r.started_at
from redrive_redrive r
where (r.state = 'planning' and r.planned_at < :now - cast(:seconds * 1000000 as integer))
   or (r.state = 'running' and r.rate is null and r.started_at < :now - cast(:seconds * 1000000 as integer)
       and exists (select 1 from redrive_redrive_item i indexed by redrive_redrive_item_ready
                   where i.redrive_id = r.id and i.state = 'ready')
       and not exists (select 1 from redrive_redrive_item i indexed by redrive_redrive_item_released
                       where i.redrive_id = r.id and i.state = 'released')
       and not exists (select 1 from redrive_redrive_item i where i.redrive_id = r.id and i.state not in ('ready', 'ineligible')
                       and coalesce(i.ended_at, i.released_at) >= :now - cast(:seconds * 1000000 as integer)))
limit :limit
