-- Reservation release: only by the current token, and only before it has run out.
update redrive_reservation set released_at = m.now
from (select max(:now, highest) as now from redrive_clock) m
where resource = :resource and token = :token and released_at is null and until > m.now
returning released_at
