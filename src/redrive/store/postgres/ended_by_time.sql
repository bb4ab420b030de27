-- Ended by time: how many events ended well or were called off in each span since a moment. Each span is counted up to
-- a cap; `reached` is then when the last of these ended.
select s.number, x.n, case when x.n = :cap::int then x.reached end as reached
from (select number, :since::timestamptz + number * make_interval(secs => :seconds::float8) as low,
             :since::timestamptz + (number + 1) * make_interval(secs => :seconds::float8) as high
      from generate_series(0, :spans::int - 1) as number) s
cross join lateral (
    select count(*) as n, max(ended_at) as reached
    from (select o.ended_at from redrive.outbox o where o.status in ('delivered', 'cancelled')
          and o.ended_at >= s.low and o.ended_at < s.high order by o.ended_at limit :cap::int) y) x
order by s.number
