-- Reservations: those that are held now, or all, by name.
select resource, token, owner, facts, taken_at, renewed_at, until, released_at,
       (select max(:now, highest) from redrive_clock) as now
from redrive_reservation
where resource > :after
  and (:everything or (released_at is null and until > (select max(:now, highest) from redrive_clock)))
order by resource
limit :limit
