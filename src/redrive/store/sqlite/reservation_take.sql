-- Reservation take: one winner. No answer: somebody else holds it.
-- Differs from PostgreSQL: there is one writer at a time; the file knows better when the caller's clock was set back.
insert into redrive_reservation (resource, token, owner, facts, taken_at, renewed_at, until)
select :resource, 1, :owner, :facts, m.now, m.now, m.now + cast(:ttl * 1000000 as integer)
from (select max(:now, highest) as now from redrive_clock) m where true
on conflict (resource) do update
set token = redrive_reservation.token + 1, owner = excluded.owner, facts = excluded.facts, taken_at = excluded.taken_at,
    renewed_at = excluded.renewed_at, until = excluded.until, released_at = null
where redrive_reservation.released_at is not null or redrive_reservation.until <= excluded.taken_at
returning resource, token, owner, facts, taken_at, renewed_at, until, released_at
