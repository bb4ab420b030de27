-- Waited for: the names that blocked events wait for, found by hops through the index: how many wait does not matter.
-- While somebody holds a snapshot, a hop steps over the entries of those who waited before; so workers ration it.
with recursive waiting as (
    (select o.blocked_on as name from redrive.outbox o
     where o.status = 'blocked' and o.blocked_on is not null order by o.blocked_on limit 1)
    union all
    select (select o.blocked_on from redrive.outbox o
            where o.status = 'blocked' and o.blocked_on > w.name order by o.blocked_on limit 1)
    from waiting w where w.name is not null
)
select w.name, coalesce(:now::timestamptz, clock_timestamp()) as now from waiting w where w.name is not null
