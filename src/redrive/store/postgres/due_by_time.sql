-- Due by time: how many pending events come due within each span from now on, lane by lane, each counted up to a cap.
with clock as (select coalesce(:now::timestamptz, clock_timestamp()) as now),
span as (
    select (place - 1)::int as number, low, lead(low) over (order by place) as high
    from unnest(:bounds::float8[]) with ordinality as b(low, place)),
lane as materialized (select queue, priority, generation from redrive.waiting_lane)
select s.number, coalesce(sum(x.n), 0)::bigint as n
from span s cross join clock left join lane l on true
left join lateral (
    select count(*) as n from (select from redrive.outbox o where o.status = 'pending' and o.queue = l.queue
                               and o.priority = l.priority and o.generation = l.generation
                               and o.due_at >= clock.now + make_interval(secs => s.low)
                               and o.due_at < clock.now + make_interval(secs => s.high) limit :cap::int) y) x on true
where s.high is not null
group by s.number order by s.number
