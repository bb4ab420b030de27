-- Key walk: the next keys with somebody in line, one index probe each, and whether the first of a line was left behind:
-- blocked by nothing, with nobody in flight.
-- Differs from PostgreSQL: SQLite would look through all keys of a target for the next of a pair, so it is asked in two.
with recursive walk(target, ordering_key, status, blocked_on, n) as (
    select o.target, o.ordering_key, o.status, o.blocked_on, 1 from redrive_outbox o
    where o.seq = coalesce(
        (select l.seq from redrive_key_line l where l.target = :target and l.ordering_key > :ordering_key
         order by l.ordering_key, l.seq limit 1),
        (select l.seq from redrive_key_line l where l.target > :target order by l.target, l.ordering_key, l.seq limit 1))
    union all
    select o.target, o.ordering_key, o.status, o.blocked_on, w.n + 1 from walk w
    join redrive_outbox o on o.seq = coalesce(
        (select l.seq from redrive_key_line l where l.target = w.target and l.ordering_key > w.ordering_key
         order by l.ordering_key, l.seq limit 1),
        (select l.seq from redrive_key_line l where l.target > w.target order by l.target, l.ordering_key, l.seq limit 1))
    where w.n < :limit
)
select w.target, w.ordering_key,
       w.status = 'blocked' and w.blocked_on is null and not exists (
           select 1 from redrive_key_busy f where f.target = w.target and f.ordering_key = w.ordering_key) as stuck
from walk w order by w.n
