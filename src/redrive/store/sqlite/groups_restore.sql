-- Restore: write down again the groups whose rows are missing, as far as their dead letters can tell.
insert into redrive_failure_group (
    fingerprint, target, type, error_class, error_type, title, state, dead_count, total_count, first_seen_at,
    last_seen_at, first_generation, last_generation, sample_event_id)
select o.fingerprint, min(o.target), min(o.type), coalesce(min(o.error_class), ''), coalesce(min(o.error_type), ''),
       substr(substr(coalesce(min(o.last_error), ''), 1, instr(coalesce(min(o.last_error), '') || char(10), char(10)) - 1), 1, 300),
       case when :now - min(o.ended_at) > 3600000000 then 'ongoing' else 'new' end, count(*), count(*),
       coalesce(min(o.ended_at), :now), coalesce(max(o.ended_at), :now), min(o.generation), max(o.generation), max(o.id)
from redrive_outbox o
where o.status = 'failed' and o.deleted_at is null and o.fingerprint is not null
  and not exists (select 1 from redrive_failure_group g where g.fingerprint = o.fingerprint)
group by o.fingerprint
returning fingerprint, dead_count
