-- Throttle use: how many permits of a target a session holds from now on.
insert into redrive_throttle_use (target, session_id, used) values (:target, :session, :used)
on conflict (target, session_id) do update set used = excluded.used
