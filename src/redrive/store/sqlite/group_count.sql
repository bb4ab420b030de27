-- Count: add dead letters to their groups, new ones or restored, in the transaction that makes or moves them.
insert into redrive_failure_group (
    fingerprint, target, type, error_class, error_type, title, dead_count, total_count, first_seen_at, last_seen_at,
    first_generation, last_generation, sample_event_id)
select o.fingerprint, min(o.target), min(o.type), coalesce(min(o.error_class), ''), coalesce(min(o.error_type), ''),
       substr(substr(coalesce(min(o.last_error), ''), 1, instr(coalesce(min(o.last_error), '') || char(10), char(10)) - 1), 1, 300),
       count(*), case when :is_new then count(*) else 0 end, :now, :now, min(o.generation), max(o.generation), max(o.id)
from redrive_outbox o
where o.id in (select value from json_each(:ids)) and o.fingerprint is not null
group by o.fingerprint
on conflict (fingerprint) do update set
    dead_count = dead_count + excluded.dead_count,
    total_count = total_count + excluded.total_count,
    last_seen_at = case when :is_new then excluded.last_seen_at else last_seen_at end,
    last_generation = max(last_generation, excluded.last_generation),
    sample_event_id = case when :is_new then excluded.sample_event_id else sample_event_id end,
    title = case when :is_new then excluded.title else title end,
    resolved_at = case when :is_new then null else resolved_at end,
    resolved_by = case when :is_new then null else resolved_by end,
    state = case
        when not :is_new then state
        when state = 'resolved' then 'regressed'
        when state = 'new' and :now - first_seen_at > 3600000000 then 'ongoing'
        else state end
