-- Open a batch. The notices it will send are made beside it (batch_notice.sql).
insert into redrive.batch (id, name, source, correlation_id, deadline_at, leftovers, opened_at)
select :id::uuid, :name::text, :source::text, :correlation_id::text,
       coalesce(:deadline_at::timestamptz, m.now + make_interval(secs => :deadline::float8)), :leftovers::text, m.now
from (select redrive.moment(:now::timestamptz) as now offset 0) m
returning id
