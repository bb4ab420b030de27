-- Adopt: sessions that are not known become known as ended, so that the sweep takes their events on its usual path.
insert into redrive_session (id, name, host, pid, queues, targets, concurrency, started_at, seen_at, lease_until, ended_at)
select distinct o.session_id, 'unknown', '', 0, '[]', '[]', 0, :now, :now, :now, :now
from redrive_outbox o
where o.id in (select value from json_each(:ids)) and o.status = 'in_flight' and o.session_id is not null
on conflict (id) do nothing
