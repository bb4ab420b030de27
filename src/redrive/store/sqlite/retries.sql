-- Retries: of the next events of each lane that come due later, how many come within these spans, in seconds.
-- An event that has not been tried yet waits for its time; the others come back.
-- Differs from PostgreSQL: there is no lateral join but with a function, so the events of a lane travel as JSON.
select case when seconds <= 10 then 10 when seconds <= 60 then 60 when seconds <= 600 then 600
            when seconds <= 3600 then 3600 else 1000000000 end as within,
       sum(attempts > 0) as retries, sum(attempts = 0) as others
from (
    select json_extract(f.value, '$[0]') as attempts, json_extract(f.value, '$[1]') as seconds
    from redrive_waiting_lane l
    cross join json_each((
        select json_group_array(json_array(x.attempts, (x.due_at - :now) / 1e6)) from (
            select o.attempts, o.due_at from redrive_outbox o
            where o.status = 'pending' and o.queue = l.queue and o.priority = l.priority
              and o.generation = l.generation and o.due_at > :now
            order by o.due_at limit :looked_at) x)) f)
group by 1 order by 1
