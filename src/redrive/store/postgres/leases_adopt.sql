-- Adopt: sessions that are not known become known as ended, so that the sweep takes their events on its usual path.
insert into redrive.session (id, name, host, pid, queues, targets, concurrency, started_at, seen_at, lease_until, ended_at)
select distinct o.session_id, 'unknown', '', 0, '{}'::text[], '{}'::text[], 0, m.now, m.now, m.now, m.now
from redrive.outbox o, (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
where o.id = any(:ids::uuid[]) and o.status = 'in_flight' and o.session_id is not null
on conflict (id) do nothing
