-- Reservation renew: only by the current token, and only before it has run out.
update redrive_reservation
set renewed_at = m.now, until = m.now + cast(:ttl * 1000000 as integer)
from (select max(:now, highest) as now from redrive_clock) m
where resource = :resource and token = :token and released_at is null and until > m.now
returning until
