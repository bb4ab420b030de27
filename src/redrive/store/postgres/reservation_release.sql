-- Reservation release: only by the current token, and only before it has run out.
update redrive.reservation r set released_at = m.now
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
where r.resource = :resource::text and r.token = :token::bigint and r.released_at is null and r.until > m.now
returning r.released_at
