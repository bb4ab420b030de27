-- Set: from the commit on it holds for everybody.
insert into redrive.setting (name, value, set_by, set_at)
values (:name::text, (:value::text)::json, :by::text, coalesce(:now::timestamptz, clock_timestamp()))
on conflict (name) do update set value = excluded.value, set_by = excluded.set_by, set_at = excluded.set_at
