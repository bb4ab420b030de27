-- Waited for: the names that blocked events wait for, found by hops through the index: how many wait does not matter.
with recursive waiting (name) as (
    select (select o.blocked_on from redrive_outbox o indexed by redrive_outbox_blocked
            where o.status = 'blocked' and o.blocked_on > '' order by o.blocked_on limit 1)
    union all
    select (select o.blocked_on from redrive_outbox o indexed by redrive_outbox_blocked
            where o.status = 'blocked' and o.blocked_on > w.name order by o.blocked_on limit 1)
    from waiting w where w.name is not null
)
select w.name, :now as now from waiting w where w.name is not null
