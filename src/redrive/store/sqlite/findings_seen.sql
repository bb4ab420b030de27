-- Seen: write down the differences of a run, one row a key. One that was healed is open again; one that is ignored stays so.
insert into redrive_finding (id, name, key, kind, desired, actual, first_seen_at, last_seen_at, run_id)
select json_extract(f.value, '$.id'), :name, json_extract(f.value, '$.key'), json_extract(f.value, '$.kind'),
       json_extract(f.value, '$.desired'), json_extract(f.value, '$.actual'), :now, :now, :run
from json_each(:found) f where true
on conflict (name, key) do update set
    kind = excluded.kind, desired = excluded.desired, actual = excluded.actual, last_seen_at = excluded.last_seen_at,
    seen_count = seen_count + (run_id <> excluded.run_id),
    returned_count = returned_count + (state = 'healed'),
    event_id = case when state = 'healed' then null else event_id end,
    converged_at = case when state = 'healed' then null else converged_at end,
    state = case when state = 'healed' then 'open' else state end,
    healed_at = null, run_id = excluded.run_id
returning id, key, state, event_id
