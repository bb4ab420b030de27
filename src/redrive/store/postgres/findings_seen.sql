-- Seen: write down the differences of a run, one row a key. One that was healed is open again; one that is ignored stays so.
insert into redrive.finding as x (id, name, key, kind, desired, actual, first_seen_at, last_seen_at, run_id)
select f.id, :name::text, f.key, f.kind, f.desired::json, f.actual::json, m.now, m.now, :run::uuid
from json_to_recordset((:found::text)::json) as f(id uuid, key text, kind text, desired text, actual text),
     (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
on conflict (name, key) do update set
    kind = excluded.kind, desired = excluded.desired, actual = excluded.actual, last_seen_at = excluded.last_seen_at,
    seen_count = x.seen_count + (x.run_id <> excluded.run_id)::int,
    returned_count = x.returned_count + (x.state = 'healed')::int,
    event_id = case when x.state = 'healed' then null else x.event_id end,
    converged_at = case when x.state = 'healed' then null else x.converged_at end,
    state = case when x.state = 'healed' then 'open' else x.state end,
    healed_at = null, run_id = excluded.run_id
returning x.id, x.key, x.state, x.event_id
