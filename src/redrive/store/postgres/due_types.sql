-- Due types: of the oldest events of each lane that are due, how many there are of each type.
select l.queue, f.type, count(*) as due,
       max(extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - greatest(f.due_at, 'epoch')))::float8 as oldest_due_seconds
from redrive.waiting_lane l
cross join lateral (
    select o.type, o.due_at from redrive.outbox o
    where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
      and o.due_at <= coalesce(:now::timestamptz, clock_timestamp())
    order by o.due_at limit :looked_at) f
group by l.queue, f.type order by due desc, l.queue, f.type limit :limit
