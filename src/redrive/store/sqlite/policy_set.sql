-- Policy set: say something about a pattern.
insert into redrive_policy_override (pattern, "values", set_by, set_at, reason)
values (:pattern, :document, :by, :now, :reason)
on conflict (pattern) do update
set "values" = excluded."values", set_by = excluded.set_by, set_at = excluded.set_at, reason = excluded.reason
