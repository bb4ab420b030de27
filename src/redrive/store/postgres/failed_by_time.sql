-- Failed by time: how many dead letters of a group, or of all, lie between one id and the next; ids begin with the time
-- of publishing. Each span is counted up to a cap, from the index alone.
with span as (
    select (place - 1)::int as number, low, lead(low) over (order by place) as high
    from unnest(:bounds::uuid[]) with ordinality as b(low, place))
select f.fingerprint, s.number, x.n
from unnest(:fingerprints::text[]) as f(fingerprint) cross join span s
cross join lateral (
    select count(*) as n from (select from redrive.outbox o where o.status = 'failed' and o.fingerprint = f.fingerprint
                               and o.id >= s.low and o.id < s.high limit :cap::int) y) x
where s.high is not null
union all
select null, s.number, x.n
from span s
cross join lateral (
    select count(*) as n from (select from redrive.outbox o where o.status = 'failed' and o.id >= s.low and o.id < s.high
                               limit :cap::int) y) x
where s.high is not null and cardinality(:fingerprints::text[]) = 0
