-- Set: from the commit on it holds for everybody.
insert into redrive_setting (name, value, set_by, set_at) values (:name, :value, :by, :now)
on conflict (name) do update set value = excluded.value, set_by = excluded.set_by, set_at = excluded.set_at
