-- Relay lag: what routes have not sent, and since when the oldest of it waits. There is no index by target: of each lane
-- of these queues (none: of all) the first so many are looked at, of each broker the first so many that wait for it.
-- Differs from PostgreSQL: what a lane or a broker has is found by its place in the index, as there is no lateral join.
select w.target, count(*) as n, min(w.created_at) as oldest_at, :now as now
from (
    select p.target, p.created_at
    from redrive_waiting_lane l
    join redrive_outbox p on p.seq in (
        select f.seq from redrive_outbox f
        where f.status = 'pending' and f.queue = l.queue and f.priority = l.priority and f.generation = l.generation
        order by f.due_at limit :limit)
    where :queues = '[]' or l.queue in (select value from json_each(:queues))
    union all
    select p.target, p.created_at
    from json_each(:brokers) broker
    join redrive_outbox p on p.seq in (
        select f.seq from redrive_outbox f indexed by redrive_outbox_blocked
        where f.status = 'blocked' and f.blocked_on = broker.value order by f.id limit :limit)
    union all
    select f.target, f.created_at from redrive_outbox f where f.status = 'in_flight') w
where w.target >= 'relay:' and w.target < 'relay;'
group by w.target
