-- Next due: when the earliest event of these lanes comes due after now, in seconds from now.
select extract(epoch from min(greatest(least(n.due_at, '9999-12-30 00:00:00+00'), 'epoch')) - coalesce(:now::timestamptz, clock_timestamp()))::float8 as seconds
from unnest(:queues::text[], :priorities::smallint[], :generations::bigint[]) as lane(queue, priority, generation)
cross join lateral (
    select p.due_at from redrive.outbox p
    where p.status = 'pending' and p.queue = lane.queue and p.priority = lane.priority
      and p.generation = lane.generation and p.due_at > coalesce(:now::timestamptz, clock_timestamp())
    order by p.due_at limit 1
) n
