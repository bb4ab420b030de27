-- Check leases: events in flight that no sweep will find: their session is not known; or one that ended long ago has them.
select o.id, o.target, o.session_id, s.id is not null as is_known
from redrive_outbox o left join redrive_session s on s.id = o.session_id
where o.status = 'in_flight' and o.lease_until is null
  and (s.id is null or coalesce(s.ended_at, s.lease_until) < :now - cast(:seconds * 1000000 as integer))
limit :limit
