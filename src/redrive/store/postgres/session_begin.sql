-- Session begin: a worker process says that it is here; its lease covers everything it will claim.
insert into redrive.session (id, name, host, pid, queues, targets, concurrency, generation, process,
                             started_at, seen_at, lease_until)
select :id::uuid, :name::text, :host::text, :pid::int, :queues::text[], :targets::text[], :concurrency::int, :generation::bigint,
       :process::text, m.now, m.now, m.now + make_interval(secs => :lease::float8)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
