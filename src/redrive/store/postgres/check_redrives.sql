-- Check redrives: plans that nobody finishes, and redrives at full speed with members to release that have not moved.
select r.id, r.state, r.planned_at, r.started_at
from redrive.redrive r, (select coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :seconds::float8) as since) m
where (r.state = 'planning' and r.planned_at < m.since)
   or (r.state = 'running' and r.rate is null and r.started_at < m.since
       and exists (select from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'ready')
       and not exists (select from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'released')
       and not exists (select from redrive.redrive_item i where i.redrive_id = r.id and i.state not in ('ready', 'ineligible')
                       and coalesce(i.ended_at, i.released_at) >= m.since))
limit :limit::int
