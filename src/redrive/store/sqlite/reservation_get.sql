-- Reservation get: one, as it stands.
select resource, token, owner, facts, taken_at, renewed_at, until, released_at,
       (select max(:now, highest) from redrive_clock) as now
from redrive_reservation
where resource = :resource
