-- Throttle waiting: on which of these names somebody waits.
select n.name from unnest(:names::text[]) with ordinality as n(name, place)
where (select o.id from redrive.outbox o where o.status = 'blocked' and o.blocked_on = n.name order by o.id limit 1) is not null
order by n.place
