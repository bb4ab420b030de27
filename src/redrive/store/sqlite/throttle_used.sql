-- Throttle used: what time it is, and how many permits of a target other workers hold. One that is gone holds none.
select :now as now,
       coalesce((select sum(u.used) from redrive_throttle_use u join redrive_session s on s.id = u.session_id
                 where u.target = :target and u.session_id <> :session and s.ended_at is null), 0) as used
