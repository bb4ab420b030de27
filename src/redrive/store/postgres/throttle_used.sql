-- Throttle used: what time it is, and how many permits of a target other workers hold. One that is gone holds none.
-- A statement of its own: one that waited for the lock would still see what was before.
select coalesce(:now::timestamptz, clock_timestamp()) as now,
       coalesce((select sum(u.used) from redrive.throttle_use u join redrive.session s on s.id = u.session_id
                 where u.target = :target::text and u.session_id <> :session::uuid and s.ended_at is null), 0)::bigint as used
