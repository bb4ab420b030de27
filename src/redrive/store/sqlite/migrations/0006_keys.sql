-- Ordering keys: of the events of one target with one key, one is under way at a time, the first published first.
--
-- Publishing knows nothing of it. The claim decides: what stands behind another of its key becomes `blocked` (with no
-- `blocked_on`), and whoever ends an event promotes the next of its key in the same transaction.
-- Differs from PostgreSQL: the order is that of the file (`seq`, the last column of every index), and there is one writer
-- at a time, so nothing has to be locked.

create index redrive_outbox_key on redrive_outbox (target, ordering_key)
    where ordering_key is not null
      and (status in ('pending', 'blocked') or (status = 'failed' and deleted_at is null and passed = 0));
create unique index redrive_outbox_key_in_flight on redrive_outbox (target, ordering_key)
    where ordering_key is not null and status = 'in_flight';
create index redrive_outbox_key_head on redrive_outbox (id)
    where ordering_key is not null and status = 'failed' and deleted_at is null and passed = 0;

-- What stands in line for its key: pending, blocked, and dead letters that nobody let the others pass. What is in flight
-- is out of the line and in the index above: each event costs one entry less.
create view redrive_key_line as
select seq, id, target, ordering_key, created_at, status, blocked_on
from redrive_outbox
where ordering_key is not null
  and (status in ('pending', 'blocked') or (status = 'failed' and deleted_at is null and passed = 0));

-- The lanes in which events wait, found by one index probe each, however many wait.
-- Differs from PostgreSQL: the next lane is asked for column by column, as in key_walk.sql.
create view redrive_waiting_lane as
with recursive lane(queue, priority, generation) as (
    select o.queue, o.priority, o.generation from redrive_outbox o
    where o.seq = (select f.seq from redrive_outbox f where f.status = 'pending'
                   order by f.queue, f.priority, f.generation limit 1)
    union all
    select o.queue, o.priority, o.generation from lane l
    join redrive_outbox o on o.seq = coalesce(
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue and f.priority = l.priority
         and f.generation > l.generation order by f.generation limit 1),
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue = l.queue and f.priority > l.priority
         order by f.priority, f.generation limit 1),
        (select f.seq from redrive_outbox f where f.status = 'pending' and f.queue > l.queue
         order by f.queue, f.priority, f.generation limit 1))
)
select queue, priority, generation from lane;
