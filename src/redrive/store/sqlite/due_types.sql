-- Due types: of the oldest events of each lane that are due, how many there are of each type.
-- Differs from PostgreSQL: there is no lateral join but with a function, so the events of a lane travel as JSON.
select l.queue, json_extract(f.value, '$[0]') as type, count(*) as due, max(json_extract(f.value, '$[1]')) as oldest_due_seconds
from redrive_waiting_lane l
cross join json_each((
    select json_group_array(json_array(x.type, (:now - x.due_at) / 1e6)) from (
        select o.type, o.due_at from redrive_outbox o
        where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority and o.generation = l.generation
          and o.due_at <= :now
        order by o.due_at limit :looked_at) x)) f
group by 1, 2 order by due desc, 1, 2 limit :limit
