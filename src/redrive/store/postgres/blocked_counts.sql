-- Blocked counts: how many events wait for each of these names, counted up to 1,001.
select w.name, c.n from unnest(:names::text[]) as w(name)
cross join lateral (
    select count(*) as n from (
        select from redrive.outbox o where o.status = 'blocked' and o.blocked_on = w.name limit 1001) x) c
