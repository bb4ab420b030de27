-- Check leases: events in flight that no sweep will find: their session is not known; or one that ended long ago has them.
select o.id, o.target, o.session_id, s.id is not null as is_known
from redrive.outbox o left join redrive.session s on s.id = o.session_id
where o.status = 'in_flight' and o.lease_until is null
  and (s.id is null
       or coalesce(s.ended_at, s.lease_until) < coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :seconds::float8))
limit :limit::int
