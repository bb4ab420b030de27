-- Redrives of a group: the latest that were started, with how many of its members.
select r.*, coalesce(:now::timestamptz, clock_timestamp()) as now, g.members,
       (select count(*) from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'released') as outstanding
from redrive.redrive_group g join redrive.redrive r on r.id = g.redrive_id
where g.fingerprint = :fingerprint::text and r.started_at is not null
order by g.redrive_id desc limit :limit
