-- Redrives: newest first.
select r.*, coalesce(:now::timestamptz, clock_timestamp()) as now,
       (select count(*) from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive.redrive r where (:before::text is null or r.id < (:before::text)::uuid) order by r.id desc limit :limit
