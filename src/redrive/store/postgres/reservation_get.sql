-- Reservation get: one, as it stands.
select resource, token, owner, facts::text as facts, taken_at, renewed_at, until, released_at,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.reservation
where resource = :resource::text
