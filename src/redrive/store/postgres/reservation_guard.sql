-- Reservation guard: how a reservation stands, and nobody can take it before this transaction ends.
-- The function redrive.guard does the same for SQL alone; here the answer becomes an error in our own words.
select r.resource, r.token, r.owner, r.facts::text as facts, r.taken_at, r.renewed_at, r.until, r.released_at,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.reservation r
where r.resource = :resource::text
for key share
