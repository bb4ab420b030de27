-- Reservation guard: how a reservation stands, and nobody can take it before this transaction ends.
-- Differs from PostgreSQL: an update that changes nothing takes the file's write lock.
update redrive_reservation set resource = resource
where resource = :resource
returning resource, token, owner, facts, taken_at, renewed_at, until, released_at,
          (select max(:now, highest) from redrive_clock) as now
