-- Relay lag: what routes have not sent, and since when the oldest of it waits. There is no index by target: of each lane
-- of these queues (none: of all) the first so many are looked at, of each broker the first so many that wait for it.
select w.target, count(*) as n, min(w.created_at) as oldest_at, coalesce(:now::timestamptz, clock_timestamp()) as now
from (
    select p.target, p.created_at
    from redrive.waiting_lane l
    cross join lateral (
        select o.target, o.created_at from redrive.outbox o
        where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
        order by o.due_at limit :limit::int) p
    where :queues::text[] = '{}' or l.queue = any(:queues::text[])
    union all
    select b.target, b.created_at
    from unnest(:brokers::text[]) as broker(name)
    cross join lateral (
        select o.target, o.created_at from redrive.outbox o
        where o.status = 'blocked' and o.blocked_on = broker.name order by o.id limit :limit::int) b
    union all
    select o.target, o.created_at from redrive.outbox o where o.status = 'in_flight') w
where starts_with(w.target, 'relay:')
group by w.target
