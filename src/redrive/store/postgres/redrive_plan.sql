-- Plan: write down what was asked. The members follow a chunk at a time; until all are there it cannot be started.
insert into redrive.redrive (id, state, selection, sentence, planned_by, planned_at, expires_at)
select :id::uuid, 'planning', :selection::text, :sentence::text, :by::text, m.now, m.now + make_interval(secs => :keep::float8)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
returning planned_at
