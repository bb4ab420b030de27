-- Batches: events that belong together, and two notices about them.
--
--   batch          what was opened; members are events with its id in outbox.batch_id
--   batch_notice   the events that a notice will be, made when the batch is opened: whoever ends the last member, with
--                  whatever tool, publishes them without knowing any handler
--
-- Nothing is counted while members move: numbers are read from the members when somebody asks, and once for a notice.
-- The first notice is due when the batch is closed and no member is untried, the final one when none is live. Whoever
-- makes that true publishes it in the same transaction. docs/decisions/0012 says why exactly one does.
-- Locks: the advisory lock of a batch before its row, several batches in the order of their ids.

create table redrive.batch (
    id             uuid primary key,
    name           text not null,
    source         text not null default '',
    correlation_id text,
    deadline_at    timestamptz,
    leftovers      text not null default 'leave' check (leftovers in ('leave', 'fail')),
    opened_at      timestamptz not null,
    closed_at      timestamptz,
    closed_by      text,
    first_at       timestamptz,
    final_at       timestamptz,
    forced         boolean not null default false,
    first_report   json,
    final_report   json
);
create index batch_name on redrive.batch (name, id);
create index batch_unfinished on redrive.batch (id) where final_at is null and closed_at is not null;
create index batch_deadline on redrive.batch (deadline_at) where final_at is null and deadline_at is not null;

create table redrive.batch_notice (
    id         uuid primary key,
    batch_id   uuid not null references redrive.batch (id) on delete cascade,
    kind       text not null check (kind in ('first', 'final')),
    type       text not null,
    target     text not null,
    queue      text not null default 'default',
    priority   smallint not null default 1,
    generation bigint not null default 0
);
create index batch_notice_batch on redrive.batch_notice (batch_id);

-- Where a member stands: 0 untried and waiting, 1 untried and in flight, 2 tried and waiting, 3 tried and in flight,
-- 4 ended. A replay makes it 2.
create function redrive.standing(p_status text, p_first_failed_at timestamptz, p_cycle int) returns int
language sql immutable parallel safe as $$
    select case when p_status in ('delivered', 'failed', 'cancelled') then 4
                else case when p_first_failed_at is null and p_cycle = 0 then 0 else 2 end
                     + case when p_status = 'in_flight' then 1 else 0 end end
$$;
create index outbox_batch on redrive.outbox (batch_id, redrive.standing(status, first_failed_at, cycle), id)
    where batch_id is not null;

create function redrive.batch_lock(p_id uuid) returns void language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended('redrive.batch:' || p_id, 0))
$$;

-- A member comes in. Guard: whoever closes the batch waits for everybody who holds a share of its key. Who holds one need
-- not ask again for the next member: of many that one transaction adds, the first asks.
create function redrive.batch_add() returns trigger language plpgsql as $$
declare
    b record;
begin
    if current_setting('transaction_isolation') = 'read committed' then
        perform from redrive.batch x where x.id = new.batch_id for key share;
    else  -- its snapshot may be older than the close: this fails then, and is tried again
        perform from redrive.batch x where x.id = new.batch_id for share;
    end if;
    -- read then: a share of the key is had of the version before the close too
    select x.name, x.closed_at, x.deadline_at, x.leftovers into b from redrive.batch x where x.id = new.batch_id;
    if not found then
        raise exception 'there is no batch %: open one, and add to that', new.batch_id using errcode = 'RD414';
    elsif b.closed_at is not null then
        raise exception 'batch % (%) is closed: nothing was added, open another for what is left', new.batch_id, b.name
            using errcode = 'RD410';
    elsif b.leftovers = 'fail' then
        new.deadline_at := least(new.deadline_at, b.deadline_at);
    else
        perform set_config('redrive.adding', new.batch_id::text, true);
    end if;
    return new;
end $$;
create trigger outbox_batch_add before insert on redrive.outbox for each row
    when (new.batch_id is not null and new.batch_id::text is distinct from current_setting('redrive.adding', true))
    execute function redrive.batch_add();

-- Say whether any member stands so. From the far end: entries of members that have moved on, kept alive by somebody's
-- snapshot, pile up at the near one.
create function redrive.batch_any(p_id uuid, p_standing int) returns boolean language sql volatile
set enable_seqscan = off as $$
    select count(*) > 0 from (
        select from redrive.outbox o
        where o.batch_id = p_id and redrive.standing(o.status, o.first_failed_at, o.cycle) = p_standing
        order by o.id desc limit 1) one
$$;

-- What a notice says. Reasons are cut: they are for a first look, the quarantine has the rest. What there is none of is
-- not looked for: each look reads all members.
create function redrive.batch_report(p_id uuid, p_kind text, p_forced boolean, p_at timestamptz) returns json
language sql volatile set enable_seqscan = off as $$
    with cell as materialized (
        select o.status, case when o.status in ('delivered', 'cancelled') then null else o.error_class end as error_class,
               o.first_failed_at is not null or o.cycle > 0 as tried, o.batch_group is not null as grouped, count(*) as n
        from redrive.outbox o where o.batch_id = p_id
        group by 1, 2, 3, 4
    ), m as materialized (
        select coalesce(sum(n), 0) as total,
               coalesce(sum(n) filter (where status = 'delivered'), 0) as delivered,
               coalesce(sum(n) filter (where status = 'failed'), 0) as failed,
               coalesce(sum(n) filter (where status = 'cancelled'), 0) as cancelled,
               coalesce(sum(n) filter (where status = 'pending'), 0) as pending,
               coalesce(sum(n) filter (where status = 'in_flight'), 0) as in_flight,
               coalesce(sum(n) filter (where status = 'blocked'), 0) as blocked,
               coalesce(sum(n) filter (where status = 'delivered' and tried), 0) as recovered,
               coalesce(bool_or(grouped), false) as grouped
        from cell
    )
    select json_build_object(
        'batch_id', b.id, 'name', b.name, 'kind', p_kind, 'forced', p_forced, 'opened_at', redrive.iso(b.opened_at),
        'closed_at', redrive.iso(b.closed_at), 'closed_by', b.closed_by, 'at', redrive.iso(p_at),
        'total', m.total, 'delivered', m.delivered, 'failed', m.failed, 'cancelled', m.cancelled,
        'leftover', m.pending + m.in_flight + m.blocked, 'recovered', m.recovered,
        'leftover_by_status', json_build_object('pending', m.pending, 'in_flight', m.in_flight, 'blocked', m.blocked),
        'by_class', (
            select coalesce(json_object_agg(c.error_class, c.n order by c.error_class), '{}') from (
                select error_class, sum(n) as n from cell where error_class is not null group by error_class) c),
        'by_group', case when m.grouped then (
            select json_build_object(
                'complete', count(*) filter (where g.delivered = g.total),
                'failed', count(*) filter (where g.delivered = 0 and g.ended = g.total),
                'partly', count(*) filter (where g.delivered < g.total and not (g.delivered = 0 and g.ended = g.total)))
            from (select count(*) as total, count(*) filter (where o.status = 'delivered') as delivered,
                         count(*) filter (where o.status in ('delivered', 'failed', 'cancelled')) as ended
                  from redrive.outbox o where o.batch_id = p_id and o.batch_group is not null
                  group by o.batch_group) g) else '{"complete": 0, "failed": 0, "partly": 0}' end,
        'failures', case when m.failed > 0 then (
            select json_agg(json_build_object(
                'id', f.id, 'type', f.type, 'subject', f.subject, 'group', f.batch_group, 'error_class', f.error_class,
                'reason', left(split_part(coalesce(f.last_error, ''), E'\n', 1), 300)) order by f.id)
            from (select * from redrive.outbox o
                  where o.batch_id = p_id and redrive.standing(o.status, o.first_failed_at, o.cycle) = 4
                    and o.status = 'failed'
                  order by o.id limit 100) f) else '[]' end,
        'more', greatest(m.failed - 100, 0))
    from redrive.batch b, m where b.id = p_id
$$;

-- Send a notice: keep what it says, and publish the events that were made for it.
create function redrive.batch_tell(p_id uuid, p_kind text, p_forced boolean, p_at timestamptz, p_report json) returns void
language plpgsql as $$
begin
    if p_kind = 'first' then
        update redrive.batch set first_at = p_at, first_report = p_report where id = p_id;
    else
        update redrive.batch set final_at = p_at, final_report = p_report, forced = p_forced where id = p_id;
    end if;
    insert into redrive.outbox (
        id, type, source, target, subject, payload, idempotency_key, correlation_id, queue, priority, due_at, generation,
        created_at)
    select n.id, n.type, b.source, n.target, b.name, p_report, p_kind || ':' || p_id, coalesce(b.correlation_id, p_id::text),
           n.queue, n.priority, p_at, n.generation, p_at
    from redrive.batch b join redrive.batch_notice n on n.batch_id = b.id and n.kind = p_kind
    where b.id = p_id;
    perform pg_notify('redrive', q.queue)
    from (select distinct n.queue from redrive.batch_notice n where n.batch_id = p_id and n.kind = p_kind) q;
end $$;

-- Look at a closed batch, one at a time, and send what is due; with force, whatever is still live. Every look is a
-- statement of its own: it sees what others have committed while we waited for the lock.
create function redrive.batch_decide(p_id uuid, p_force boolean, p_now timestamptz) returns boolean language plpgsql as $$
declare
    b         record;
    v_untried boolean := false;
    v_live    boolean;
    v_at      timestamptz;
    v_report  json;
begin
    perform redrive.batch_lock(p_id);
    select x.closed_at, x.first_at, x.final_at into b from redrive.batch x where x.id = p_id;
    if b.closed_at is null or b.final_at is not null then
        return false;
    end if;
    if b.first_at is null then
        v_untried := redrive.batch_any(p_id, 0) or redrive.batch_any(p_id, 1);
    end if;
    v_live := v_untried or redrive.batch_any(p_id, 2) or redrive.batch_any(p_id, 3);
    if not p_force and (v_untried or v_live and b.first_at is not null) then
        return false;
    end if;
    v_at := greatest(p_now, redrive.moment(null));
    v_report := redrive.batch_report(p_id, 'first', v_untried, v_at);
    if b.first_at is null then
        perform redrive.batch_tell(p_id, 'first', v_untried, v_at, v_report);
    end if;
    if p_force or not v_live then
        v_report := v_report::jsonb || jsonb_build_object('kind', 'final', 'forced', v_live);
        perform redrive.batch_tell(p_id, 'final', v_live, v_at, v_report);
    end if;
    return true;
end $$;

-- A member has ended or failed for the first time (p_event_id says which), or the batch was closed: is a notice due?
-- Whoever leaves without having looked holds a member in flight, which cannot end before we have committed: whoever ends
-- it sees what we did. The next above our own: neighbours of different transactions differ, so nobody waits in line.
-- Only what is in flight: a claim would pass over a pending event that is locked, and come back to it half a minute later.
create function redrive.batch_look(p_id uuid, p_event_id uuid, p_closes boolean, p_now timestamptz) returns void
language plpgsql set enable_seqscan = off as $$
declare
    b record;
begin
    select x.closed_at, x.first_at, x.final_at into b from redrive.batch x where x.id = p_id;
    if p_closes then
        perform from redrive.batch x where x.id = p_id for update;  -- those who saw it open have committed now
    elsif b.closed_at is null then
        perform from redrive.batch x where x.id = p_id for key share;  -- whoever closes it comes after us, or has been
        select x.closed_at, x.first_at, x.final_at into b from redrive.batch x where x.id = p_id;
    end if;
    if b.closed_at is null or b.final_at is not null then
        return;
    end if;
    if not p_closes then
        perform from redrive.outbox o
        where o.batch_id = p_id and o.id > p_event_id
          and redrive.standing(o.status, o.first_failed_at, o.cycle) = case when b.first_at is null then 1 else 3 end
        order by o.id limit 1
        for share skip locked;
        if found then
            return;
        end if;
    end if;
    perform redrive.batch_decide(p_id, false, p_now);
end $$;

-- Note that a batch is to be looked at when this transaction commits; true for the first one noted. It stands in the
-- condition of a trigger, which PostgreSQL evaluates row by row at once: of a thousand members that a turn settles, one
-- is queued, and the others find their batch noted. The note is undone with a savepoint, as the queue is.
create function redrive.batch_noted(p_id uuid, p_event_id uuid, p_at timestamptz) returns boolean language plpgsql as $$
declare
    v_noted text := coalesce(current_setting('redrive.batches', true), '');
begin
    if p_event_id is null then
        perform set_config('redrive.adding', '', true);  -- who has closed it adds no more
    end if;
    perform set_config('redrive.batches', v_noted || ' ' || p_id || '/' || coalesce(p_event_id::text, 'closed') || '/'
        || coalesce(extract(epoch from p_at)::text, ''), true);
    return v_noted = '';
end $$;

create function redrive.batches_look() returns trigger language plpgsql as $$
declare
    v_noted text := current_setting('redrive.batches', true);
    n       record;
begin
    perform set_config('redrive.batches', '', true);
    for n in
        select split_part(e, '/', 1)::uuid as id, max(nullif(split_part(e, '/', 2), 'closed'))::uuid as event_id,
               bool_or(split_part(e, '/', 2) = 'closed') as closes,
               to_timestamp(max(nullif(split_part(e, '/', 3), '')::float8)) as at
        from unnest(string_to_array(trim(v_noted), ' ')) as e
        group by 1 order by 1
    loop
        perform redrive.batch_look(n.id, n.event_id, n.closes, n.at);
    end loop;
    return null;
end $$;

create constraint trigger outbox_batch_look after update of status on redrive.outbox
    deferrable initially deferred for each row
    when (new.batch_id is not null
          and (new.status in ('delivered', 'failed', 'cancelled') and old.status <> new.status
               or new.first_failed_at is not null and old.first_failed_at is null)
          and coalesce(position(new.batch_id::text in current_setting('redrive.batches', true)), 0) = 0
          and redrive.batch_noted(new.batch_id, new.id, coalesce(new.ended_at, new.first_failed_at)))
    execute function redrive.batches_look();
create constraint trigger batch_look after update of closed_at on redrive.batch
    deferrable initially deferred for each row
    when (new.closed_at is not null and old.closed_at is null and redrive.batch_noted(new.id, null, new.closed_at))
    execute function redrive.batches_look();

-- Close a batch, in the caller's transaction; false when it was closed. From its commit on nothing can be added.
-- Guard: the lock comes before the row, as everywhere; nobody looks at an open batch, so it keeps no worker waiting.
create function redrive.batch_close(p_id uuid, p_by text default null, p_now timestamptz default null) returns boolean
language plpgsql as $$
begin
    perform redrive.batch_lock(p_id);
    update redrive.batch set closed_at = redrive.moment(p_now), closed_by = p_by where id = p_id and closed_at is null;
    if found then
        return true;
    end if;
    perform from redrive.batch where id = p_id;
    if not found then
        raise exception 'there is no batch %', p_id using errcode = 'RD414';
    end if;
    return false;
end $$;

-- Send what has not been sent, although members are live: they go on, and the notice stays as it was sent.
create function redrive.batch_force(p_id uuid, p_by text default null, p_now timestamptz default null) returns boolean
language plpgsql as $$
begin
    perform redrive.batch_close(p_id, p_by, p_now);
    perform from redrive.batch where id = p_id for update;  -- those who add to it have committed now
    return redrive.batch_decide(p_id, true, p_now);
end $$;

-- Like before, with a batch.
drop function redrive.publish;
create function redrive.publish(
    p_type text, p_payload json, p_target text default null, p_subject text default null, p_source text default 'sql-direct',
    p_retry_key text default null, p_idempotency_key text default null, p_correlation_id text default null,
    p_causation_id text default null, p_queue text default 'default', p_priority smallint default 1::smallint,
    p_delay interval default interval '0', p_headers json default '{}', p_generation bigint default 0,
    p_ordering_key text default null, p_batch_id uuid default null, p_batch_group text default null
) returns uuid language plpgsql as $$
declare
    v_id   uuid := redrive.uuid7();
    v_now  timestamptz := redrive.moment(null);
    v_live uuid;
begin
    loop
        insert into redrive.outbox as o (
            id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
            ordering_key, batch_id, batch_group, queue, priority, due_at, generation, created_at)
        values (
            v_id, p_type, p_source, coalesce(p_target, p_type), p_subject, p_payload, p_headers,
            coalesce(p_idempotency_key, v_id::text), p_retry_key, p_correlation_id, p_causation_id,
            p_ordering_key, p_batch_id, p_batch_group, p_queue, p_priority, v_now + greatest(p_delay, interval '0'),
            p_generation, v_now)
        on conflict (target, retry_key) where retry_key is not null and status in ('pending', 'in_flight', 'blocked')
            do nothing;
        exit when found;
        select o.id into v_live from redrive.outbox o
        where o.target = coalesce(p_target, p_type) and o.retry_key = p_retry_key
          and o.status in ('pending', 'in_flight', 'blocked');
        if found then
            return v_live;
        end if;  -- it has ended since: try again
    end loop;
    perform pg_notify('redrive', p_queue);
    return v_id;
end $$;
