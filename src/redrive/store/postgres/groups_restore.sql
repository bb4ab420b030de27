-- Restore: write down again the groups whose rows are missing, as far as their dead letters can tell.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
insert into redrive.failure_group (
    fingerprint, target, type, error_class, error_type, title, state, dead_count, total_count, first_seen_at,
    last_seen_at, first_generation, last_generation, sample_event_id)
select o.fingerprint, min(o.target), min(o.type), coalesce(min(o.error_class), ''), coalesce(min(o.error_type), ''),
       left(split_part(coalesce(min(o.last_error), ''), E'\n', 1), 300),
       case when m.now - min(o.ended_at) > interval '1 hour' then 'ongoing' else 'new' end, count(*), count(*),
       coalesce(min(o.ended_at), m.now), coalesce(max(o.ended_at), m.now), min(o.generation), max(o.generation),
       (array_agg(o.id order by o.id desc))[1]
from redrive.outbox o, moment m
where o.status = 'failed' and o.deleted_at is null and o.fingerprint is not null
  and not exists (select 1 from redrive.failure_group g where g.fingerprint = o.fingerprint)
group by o.fingerprint, m.now
returning fingerprint, dead_count
