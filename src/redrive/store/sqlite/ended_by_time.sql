-- Ended by time: how many events ended well or were called off in each span since a moment. Each span is counted up to
-- a cap; `reached` is then when the last of these ended.
with recursive span(number, low, high) as (
    select 0, :since, :since + cast(:seconds * 1e6 as integer)
    union all select number + 1, high, high + cast(:seconds * 1e6 as integer) from span where number + 1 < :spans)
select number,
       (select count(*) from (select 1 from redrive_outbox o where o.status in ('delivered', 'cancelled')
                              and o.ended_at >= s.low and o.ended_at < s.high limit :cap)) as n,
       (select o.ended_at from redrive_outbox o where o.status in ('delivered', 'cancelled')
        and o.ended_at >= s.low and o.ended_at < s.high order by o.ended_at limit 1 offset :cap - 1) as reached
from span s
