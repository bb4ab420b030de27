-- Throttle lock: whoever gives permits of a target does it alone. Makes the row of a target nobody has limited before.
-- Differs from PostgreSQL: there is one writer at a time, so nothing has to be locked.
insert into redrive_throttle (target, free_at) values (:target, :now)
on conflict (target) do update set target = excluded.target
returning free_at
