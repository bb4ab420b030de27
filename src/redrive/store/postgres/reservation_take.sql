-- Reservation take: one winner. No answer: somebody else holds it.
-- Never waits for a guard that is open: whoever writes under the resource keeps it until its commit (`for key share`).
-- Differs from SQLite: the row is locked first, because others write at the same time.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), free as materialized (
    select r.resource from redrive.reservation r, moment m
    where r.resource = :resource::text and (r.released_at is not null or r.until <= m.now)
    for update of r skip locked
), taken_again as (
    update redrive.reservation r
    set token = r.token + 1, owner = :owner::text, facts = (:facts::text)::json, taken_at = m.now, renewed_at = m.now,
        until = m.now + make_interval(secs => :ttl::float8), released_at = null
    from moment m
    where r.resource = any(array(select f.resource from free f))
    returning r.resource, r.token, r.owner, r.facts::text as facts, r.taken_at, r.renewed_at, r.until, r.released_at
), taken_first as (
    insert into redrive.reservation as r (resource, token, owner, facts, taken_at, renewed_at, until)
    select :resource::text, 1, :owner::text, (:facts::text)::json, m.now, m.now,
           m.now + make_interval(secs => :ttl::float8)
    from moment m
    where not exists (select from redrive.reservation known where known.resource = :resource::text)
    on conflict (resource) do nothing
    returning r.resource, r.token, r.owner, r.facts::text as facts, r.taken_at, r.renewed_at, r.until, r.released_at
)
select * from taken_again
union all
select * from taken_first
