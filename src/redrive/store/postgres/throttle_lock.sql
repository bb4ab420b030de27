-- Throttle lock: whoever gives permits of a target does it alone. Makes the row of a target nobody has limited before.
insert into redrive.throttle (target, free_at)
values (:target::text, coalesce(:now::timestamptz, clock_timestamp()))
on conflict (target) do update set target = excluded.target
returning free_at
