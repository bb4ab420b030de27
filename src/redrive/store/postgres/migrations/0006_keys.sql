-- Ordering keys: of the events of one target with one key, one is under way at a time, the first published first.
--
-- Publishing knows nothing of it. The claim decides: what stands behind another of its key becomes `blocked` (with no
-- `blocked_on`), and whoever ends an event promotes the next of its key in the same transaction.

create index outbox_key on redrive.outbox (target, ordering_key, created_at, id)
    where ordering_key is not null
      and (status in ('pending', 'blocked') or (status = 'failed' and deleted_at is null and not passed));
-- The database's own guarantee, for what two claims cannot know of each other.
create unique index outbox_key_in_flight on redrive.outbox (target, ordering_key)
    where ordering_key is not null and status = 'in_flight';
create index outbox_key_head on redrive.outbox (id)
    where ordering_key is not null and status = 'failed' and deleted_at is null and not passed;

-- What stands in line for its key: pending, blocked, and dead letters that nobody let the others pass. What is in flight
-- is out of the line and in the index above: each event costs one entry less.
create view redrive.key_line as
select id, target, ordering_key, created_at, status, blocked_on
from redrive.outbox
where ordering_key is not null
  and (status in ('pending', 'blocked') or (status = 'failed' and deleted_at is null and not passed));

-- Of claimed candidates, answer those whose turn it is; the others become blocked.
-- Whoever blocks an event holds a share of the lock of one that stands before it: that one cannot end meanwhile, and
-- when it does, its transaction sees the blocked one and promotes it. If there is no such lock to be had, the one before
-- is just ending: the candidate stays pending, due now (see watermark.py), and the next look decides.
-- Planner settings as on a worker's connection: a function keeps the plan it made while the table was small.
create function redrive.take_turns(p_ids uuid[], p_now timestamptz) returns uuid[] language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_behind  uuid[];
    v_blocked uuid[];
begin
    if cardinality(p_ids) = 0 then
        return p_ids;
    end if;
    select array_agg(p.id) into v_behind
    from redrive.outbox p
    where p.id = any(p_ids)
      and (exists (select from redrive.key_line l
                   where l.target = p.target and l.ordering_key = p.ordering_key
                     and (l.created_at, l.id) < (p.created_at, p.id))
           or exists (select from redrive.outbox f
                      where f.target = p.target and f.ordering_key = p.ordering_key and f.ordering_key is not null
                        and f.status = 'in_flight'));
    if v_behind is null then
        return p_ids;
    end if;
    select coalesce(array_agg(p.id), '{}') into v_blocked
    from redrive.outbox p
    cross join lateral (
        select f.id from redrive.outbox f
        where f.target = p.target and f.ordering_key = p.ordering_key and f.ordering_key is not null
          and f.status = 'in_flight'
        for share of f skip locked) before
    where p.id = any(v_behind);
    select v_blocked || coalesce(array_agg(p.id), '{}') into v_blocked
    from redrive.outbox p
    cross join lateral (
        select l.id from redrive.key_line l
        where l.target = p.target and l.ordering_key = p.ordering_key and (l.created_at, l.id) < (p.created_at, p.id)
        order by l.created_at, l.id
        limit 1
        for share of l skip locked) before
    where p.id = any(v_behind) and p.id <> all(v_blocked);
    update redrive.outbox o set status = 'blocked' where o.id = any(v_blocked);
    update redrive.outbox o set due_at = redrive.moment(p_now) where o.id = any(v_behind) and o.id <> all(v_blocked);
    -- one that was in flight and comes back behind another that waited for it: that one is first now
    perform redrive.promote(array_agg(o.target), array_agg(o.ordering_key), p_now)
    from redrive.outbox o where o.id = any(v_blocked);
    return array(select id from unnest(p_ids) as id where id <> all(v_behind));
end $$;

-- An event of each of these keys has left the line or the flight: the first in line may go, if it waits for nothing else.
-- Its due time is now, so that claims find it.
-- Two that end at once may both look at a row the other has changed: then look again.
create function redrive.promote(p_targets text[], p_keys text[], p_now timestamptz, p_wake boolean default true)
returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_next  uuid[];
    v_moved int;
begin
    if array_remove(p_keys, null) = '{}' or p_keys is null then
        return;
    end if;
    for v_try in 1..5 loop
        select array_agg(f.id) into v_next
        from (select distinct u.target, u.key from unnest(p_targets, p_keys) as u(target, key) where u.key is not null) k
        cross join lateral (
            select l.id, l.status, l.blocked_on from redrive.key_line l
            where l.target = k.target and l.ordering_key = k.key
            order by l.created_at, l.id
            limit 1) f
        where f.status = 'blocked' and f.blocked_on is null
          and not exists (select from redrive.outbox o where o.target = k.target and o.ordering_key = k.key
                            and o.ordering_key is not null and o.status = 'in_flight');
        exit when v_next is null;
        update redrive.outbox o set status = 'pending', due_at = redrive.moment(p_now)
        where o.id = any(v_next) and o.status = 'blocked' and o.blocked_on is null;
        get diagnostics v_moved = row_count;
        if p_wake and v_moved > 0 then
            perform pg_notify('redrive', q.queue)
            from (select distinct o.queue from redrive.outbox o where o.id = any(v_next)) q;
        end if;
        exit when v_moved = cardinality(v_next);
    end loop;
end $$;

-- The lanes in which events wait, found by one index probe each, however many wait.
create view redrive.waiting_lane as
with recursive lane as (
    (select o.queue, o.priority, o.generation from redrive.outbox o where o.status = 'pending'
     order by o.queue, o.priority, o.generation limit 1)
    union all
    select x.* from lane l cross join lateral (
        select o.queue, o.priority, o.generation from redrive.outbox o
        where o.status = 'pending' and (o.queue, o.priority, o.generation) > (l.queue, l.priority, l.generation)
        order by o.queue, o.priority, o.generation limit 1) x
)
select queue, priority, generation from lane;
