-- Redrive: one of them, with the database's time.
select r.*, coalesce(:now::timestamptz, clock_timestamp()) as now,
       (select count(*) from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive.redrive r where r.id = :id::uuid
