-- Sessions: the workers that are here, and those that left lately.
select id, name, host, pid, queues, targets, concurrency, generation, started_at, seen_at, lease_until, ended_at
from redrive.session order by started_at desc limit 1000
