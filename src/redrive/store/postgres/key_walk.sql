-- Key walk: the next keys with somebody in line, one index probe each, and whether the first of a line was left behind:
-- blocked by nothing, with nobody in flight.
with recursive walk as (
    (select l.id, l.target, l.ordering_key, l.status, l.blocked_on, 1 as n from redrive.key_line l
     where (l.target, l.ordering_key) > (:target::text, :ordering_key::text)
     order by l.target, l.ordering_key, l.created_at, l.id limit 1)
    union all
    select x.*, w.n + 1 from walk w
    cross join lateral (
        select l.id, l.target, l.ordering_key, l.status, l.blocked_on from redrive.key_line l
        where (l.target, l.ordering_key) > (w.target, w.ordering_key)
        order by l.target, l.ordering_key, l.created_at, l.id limit 1) x
    where w.n < :limit::int
)
select w.target, w.ordering_key,
       w.status = 'blocked' and w.blocked_on is null and not exists (
           select from redrive.key_busy f where f.target = w.target and f.ordering_key = w.ordering_key) as stuck
from walk w order by w.n
