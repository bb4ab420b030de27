-- Check blocked: events that wait for nothing at all. Whoever waits for a name is found by it; these nobody would find.
select o.id, o.target from redrive_outbox o
where o.status = 'blocked' and o.blocked_on is null and o.ordering_key is null
limit :limit
