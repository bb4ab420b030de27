-- Attention, redrives: those that stand still and may be waiting for somebody, the oldest first.
-- A plan that has expired cannot be started any more, and waits for nobody.
select r.id, r.state, r.sentence, r.digest, r.ready, r.planned_by, r.planned_at, r.approved_by, r.approved_at, r.stopped_by,
       r.stop_reason, r.edited, coalesce(r.stopped_at, r.started_at, r.planned_at) as stopped_at
from redrive.redrive r
cross join (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
where r.state in ('planning', 'planned', 'paused', 'halted')
  and (r.state in ('paused', 'halted')
       or (r.state = 'planned' and r.expires_at > m.now
           and (r.approved_at is not null or r.edited or r.ready > coalesce(:approval::bigint, 9223372036854775807)
                or (r.planned_by like 'agent:%' and r.ready > :agents::bigint)))
       or (r.state = 'planning' and r.planned_at < m.now - make_interval(secs => :planning::float8)))
order by r.id limit :limit
