-- Reservations: those that are held now, or all, by name.
select resource, token, owner, facts::text as facts, taken_at, renewed_at, until, released_at,
       coalesce(:now::timestamptz, clock_timestamp()) as now
from redrive.reservation
where resource collate "C" > :after::text
  and (:everything::boolean or (released_at is null and until > coalesce(:now::timestamptz, clock_timestamp())))
order by resource collate "C"
limit :limit::int
