-- Dead letters people can work with: groups with one cause, and redrives.
--
--   failure_group    dead letters with one fingerprint; counted in the transaction that makes or moves a dead letter
--   redrive          many replays as one operation: plan, start, release, outcome
--   redrive_item     one member of a redrive: frozen when planned, with its own outcome
--   setting          what holds for everybody who works on this database
--   redrive_group    how many members of a group a redrive has; a group's past redrives are found here
--
-- Who needs several locks takes them in this order: redrive, items, events, groups (by fingerprint), trail.

create table redrive.failure_group (
    fingerprint      text primary key,
    target           text not null,
    type             text not null,
    error_class      text not null,
    error_type       text not null,
    title            text not null,
    state            text not null default 'new' check (state in ('new', 'ongoing', 'resolved', 'regressed')),
    dead_count       bigint not null default 0,
    total_count      bigint not null default 0,
    first_seen_at    timestamptz not null,
    last_seen_at     timestamptz not null,
    first_generation bigint not null default 0,
    last_generation  bigint not null default 0,
    sample_event_id  uuid not null,
    owner            text,
    note             text,
    muted_until      timestamptz,
    resolved_at      timestamptz,
    resolved_by      text
);
create index failure_group_seen on redrive.failure_group (last_seen_at desc);
create index outbox_group on redrive.outbox (fingerprint, id) where status = 'failed';

create table redrive.redrive (
    id              uuid primary key,
    state           text not null check (state in ('planning', 'planned', 'running', 'paused', 'halted', 'done', 'aborted')),
    selection       text not null,
    sentence        text not null,
    digest          text not null default '',
    total           bigint not null default 0,
    ready           bigint not null default 0,
    planned_by      text not null,
    planned_at      timestamptz not null,
    expires_at      timestamptz not null,
    approved_by     text,
    approved_at     timestamptz,
    started_by      text,
    started_at      timestamptz,
    reason          text,
    generation      bigint,
    from_start      boolean not null default false,
    edited          boolean not null default false,
    rate            float8,
    max_in_flight   int not null default 5000,
    ramp            int[] not null default '{}',
    halt_at         float8 not null default 0.1,
    stage           int not null default 0,
    metered_from    timestamptz,
    metered_count   bigint not null default 0,
    released        bigint not null default 0,
    delivered       bigint not null default 0,
    failed_same     bigint not null default 0,
    failed_other    bigint not null default 0,
    skipped         bigint not null default 0,
    stopped_by      text,
    stop_reason     text,
    ended_at        timestamptz
);
create index redrive_running on redrive.redrive (id) where state = 'running';

create table redrive.redrive_item (
    redrive_id  uuid not null,  -- no foreign key: checking it takes as long as planning a million members
    position    bigint not null,
    event_id    uuid not null,
    cycle       int not null,
    fingerprint text,
    failed_at   timestamptz,
    follows     bigint,
    state       text not null check (state in ('ready', 'ineligible', 'released', 'delivered', 'failed_same',
                                               'failed_other', 'skipped')),
    reason      text,
    stage       int,
    released_at timestamptz,
    ended_at    timestamptz,
    payload     json,
    primary key (redrive_id, position)
);
create index redrive_item_ready on redrive.redrive_item (redrive_id, position) where state = 'ready';
create index redrive_item_released on redrive.redrive_item (redrive_id, position) where state = 'released';
create unique index redrive_item_event on redrive.redrive_item (event_id) where state = 'released';
create index redrive_item_waiting on redrive.redrive_item (event_id) where state = 'ready';

create table redrive.redrive_group (
    fingerprint text not null,
    redrive_id  uuid not null references redrive.redrive (id) on delete cascade,
    members     bigint not null,
    primary key (fingerprint, redrive_id)
);

-- Take dead letters out of their groups, by their fingerprints. Groups are locked in order, so that two who settle for
-- the same groups cannot wait for each other.
create function redrive.uncount_dead(p_fingerprints text[]) returns void language sql as $$
    update redrive.failure_group g set dead_count = g.dead_count - c.n
    from (select l.fingerprint, n.n from redrive.failure_group l join (
              select f.fingerprint, count(*) as n from unnest(p_fingerprints) as f(fingerprint) group by f.fingerprint
          ) n on n.fingerprint = l.fingerprint
          order by l.fingerprint for update of l) c
    where g.fingerprint = c.fingerprint
$$;

-- Add dead letters to their groups: new ones, or restored.
create function redrive.count_dead(p_event_ids uuid[], p_is_new boolean, p_now timestamptz) returns void language sql as $$
    insert into redrive.failure_group as g (
        fingerprint, target, type, error_class, error_type, title, dead_count, total_count, first_seen_at, last_seen_at,
        first_generation, last_generation, sample_event_id)
    select o.fingerprint, min(o.target), min(o.type), coalesce(min(o.error_class), ''), coalesce(min(o.error_type), ''),
           left(split_part(coalesce(min(o.last_error), ''), E'\n', 1), 300), count(*), case when p_is_new then count(*) else 0 end,
           p_now, p_now, min(o.generation), max(o.generation), (array_agg(o.id order by o.id desc))[1]
    from redrive.outbox o
    where o.id = any(p_event_ids) and o.fingerprint is not null
    group by o.fingerprint
    order by o.fingerprint
    on conflict (fingerprint) do update set
        dead_count = g.dead_count + excluded.dead_count,
        total_count = g.total_count + excluded.total_count,
        last_seen_at = case when p_is_new then excluded.last_seen_at else g.last_seen_at end,
        last_generation = greatest(g.last_generation, excluded.last_generation),
        sample_event_id = case when p_is_new then excluded.sample_event_id else g.sample_event_id end,
        title = case when p_is_new then excluded.title else g.title end,
        resolved_at = case when p_is_new then null else g.resolved_at end,
        resolved_by = case when p_is_new then null else g.resolved_by end,
        state = case
            when not p_is_new then g.state
            when g.state = 'resolved' then 'regressed'
            when g.state = 'new' and p_now - g.first_seen_at > interval '1 hour' then 'ongoing'
            else g.state end
$$;

create function redrive.with_cycle(p_history jsonb, p_cycle jsonb) returns jsonb language sql immutable as $$
    select case when jsonb_array_length(p_history) >= 20 then (p_history - 0) || p_cycle else p_history || p_cycle end
$$;

-- Release the next members of a redrive: send dead letters round again, in place. Every replay goes through here, a
-- single one too. A member that is no longer what was planned is skipped, with the reason; the set can only shrink.
-- Everything is locked first and judged then, by a statement of its own: it sees what others did while we waited.
create function redrive.release(
    p_redrive_id uuid, p_limit int, p_stage int, p_priority smallint, p_chain text, p_now timestamptz
) returns table (event_id uuid, why text) language plpgsql
-- A few rows are found by their keys, whatever the planner believes of a table that was filled a moment ago.
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set timezone = 'UTC' as $$
#variable_conflict use_column
declare
    r           redrive.redrive%rowtype;
    v_now       timestamptz;
    v_next      bigint[];
    v_events    uuid[];
    v_positions bigint[];
    v_whys      text[];
    v_going     uuid[];
    v_gone      bigint[];
begin
    select * into r from redrive.redrive where id = p_redrive_id for update;
    select array_agg(n.position), array_agg(n.event_id) into v_next, v_events
    from (select x.position, x.event_id
          -- the next of an ordering key goes when the member before it has ended; some more are looked at for that
          from (select * from redrive.redrive_item y where y.redrive_id = p_redrive_id and y.state = 'ready'
                order by y.position limit 4 * p_limit) x
          where x.follows is null or not exists (
              select from redrive.redrive_item f
              where f.redrive_id = p_redrive_id and f.position = x.follows and f.state in ('ready', 'released'))
          order by x.position limit p_limit) n;
    perform from redrive.outbox o where o.id = any(v_events) order by o.id for update;

    -- what another redrive released and has not written down yet must wait: its outcome would be lost
    select array_agg(j.position order by j.position), array_agg(j.event_id order by j.position),
           array_agg(j.why order by j.position), array_agg(j.event_id order by j.position) filter (where j.why is null),
           array_agg(j.position) filter (where j.why is null)
    into v_positions, v_events, v_whys, v_going, v_gone
    from (
        select i.position, i.event_id,
               case when o.id is null then 'the event is gone'
                    when o.status <> 'failed' then 'it is ' || o.status
                    when o.deleted_at is not null then 'it was discarded'
                    when o.cycle <> i.cycle then 'it was replayed by somebody else'
                    when o.compensation = 'pending' then 'its compensation is under way'
                    when o.compensation = 'failed' then 'its compensation failed, see to that first'
                    when exists (select from redrive.event_handled h
                                 where h.target = o.target and h.idempotency_key = o.idempotency_key) then 'already handled'
                    when o.retry_key is not null and (
                        exists (select from redrive.outbox l where l.target = o.target and l.retry_key = o.retry_key
                                and l.retry_key is not null and l.status in ('pending', 'in_flight', 'blocked'))
                        or row_number() over (partition by o.target, o.retry_key order by i.position) > 1)
                        then 'another event with its retry key is under way'
                    when o.ordering_key is not null and exists (
                        select from redrive.key_line l where l.target = o.target and l.ordering_key = o.ordering_key
                        and l.status = 'failed' and (l.created_at, l.id) < (o.created_at, o.id) and not exists (
                            select from redrive.redrive_item y
                            where y.redrive_id = p_redrive_id and y.event_id = l.id and y.state = 'ready'))
                        then 'behind a failed head of its ordering key' end as why
        from redrive.redrive_item i left join redrive.outbox o on o.id = i.event_id
        where i.redrive_id = p_redrive_id and i.position = any(v_next)
    ) j
    where j.why is not null or not exists (
        select from redrive.redrive_item y where y.event_id = j.event_id and y.state = 'released');

    v_now := redrive.moment(p_now);
    perform redrive.uncount_dead(array(
        select o.fingerprint from redrive.outbox o where o.id = any(v_going) and o.fingerprint is not null));
    perform redrive.write_trail(p_chain, v_now, array_agg(o.id), array_agg('replayed'::text), array_agg(o.source),
        array_agg(r.started_by), array_agg(json_build_object('reason', r.reason,
        'generation', coalesce(r.generation, o.generation), 'cycle', o.cycle + 1, 'redrive', p_redrive_id,
        'from_start', r.from_start or coalesce(o.compensation, '') = 'done')::text))
    from (select * from redrive.outbox x where x.id = any(v_going) order by x.id) o;
    update redrive.outbox o set
        status = 'pending', due_at = v_now, attempts = 0, lost_count = 0, deferred_count = 0, degraded = false,
        cycle = o.cycle + 1,
        generation = coalesce(r.generation, o.generation), priority = coalesce(p_priority, o.priority),
        first_failed_at = null, last_error = null, error_class = null, error_type = null, safe_to_retry = null,
        fingerprint = null, ended_at = null, passed = false,
        -- what was undone cannot be resumed
        steps_from = case when r.from_start or o.compensation = 'done' then o.cycle + 1 else o.steps_from end,
        compensation = null,
        deadline_at = null,  -- somebody wants it done although the time is over
        failure_history = redrive.with_cycle(o.failure_history, jsonb_build_object(
            'cycle', o.cycle, 'attempts', o.attempts, 'lost_count', o.lost_count,
            'first_failed_at', o.first_failed_at, 'failed_at', o.ended_at,
            'last_error', o.last_error, 'error_class', o.error_class, 'error_type', o.error_type,
            'fingerprint', o.fingerprint, 'generation', o.generation,
            'replayed_at', v_now, 'replayed_by', r.started_by, 'reason', r.reason))
    where o.id = any(v_going);
    update redrive.redrive_item i set state = 'released', stage = p_stage, released_at = v_now
    where i.redrive_id = p_redrive_id and i.position = any(v_gone);
    update redrive.redrive_item i set state = 'skipped', stage = p_stage, ended_at = v_now,
        reason = v_whys[array_position(v_positions, i.position)]
    where i.redrive_id = p_redrive_id and i.position = any(v_positions) and i.position <> all(coalesce(v_gone, '{}'))
      and cardinality(v_positions) > coalesce(cardinality(v_gone), 0);
    update redrive.redrive d set
        released = d.released + coalesce(cardinality(v_going), 0),
        skipped = d.skipped + coalesce(cardinality(v_positions), 0) - coalesce(cardinality(v_going), 0)
    where d.id = p_redrive_id;
    perform pg_notify('redrive', q.queue)
    from (select distinct o.queue from redrive.outbox o where o.id = any(v_going)) q;
    return query select e.event_id, e.why from unnest(v_events, v_whys) as e(event_id, why);
end $$;

-- Write down how the released members of a redrive ended. Guard: whoever waited for the redrive must look again.
create function redrive.note_outcomes(p_redrive_id uuid, p_now timestamptz) returns void language sql volatile
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
    select from redrive.redrive where id = p_redrive_id for update;
    with ended as (
        update redrive.redrive_item i
        set state = case
                when o.id is null then 'skipped'
                when o.status = 'delivered' then 'delivered'
                when o.status = 'cancelled' then 'skipped'
                when o.fingerprint is not distinct from i.fingerprint then 'failed_same'
                else 'failed_other' end,
            reason = case when o.id is null then 'the event is gone' when o.status = 'cancelled' then 'it was cancelled' end,
            ended_at = coalesce(o.ended_at, p_now, clock_timestamp())
        from (select x.ctid as place, x.event_id, x.cycle from redrive.redrive_item x  -- nobody moves it: we hold the redrive
              where x.redrive_id = p_redrive_id and x.state = 'released') w
        left join lateral (select x.id, x.status, x.cycle, x.fingerprint, x.ended_at from redrive.outbox x
                           where x.id = w.event_id offset 0) o on true
        where i.ctid = w.place and i.state = 'released'
          and (o.id is null or o.status in ('delivered', 'failed', 'cancelled') or o.cycle > w.cycle + 1)
        returning i.state
    )
    update redrive.redrive d set
        delivered = d.delivered + (select count(*) from ended where state = 'delivered'),
        failed_same = d.failed_same + (select count(*) from ended where state = 'failed_same'),
        failed_other = d.failed_other + (select count(*) from ended where state = 'failed_other'),
        skipped = d.skipped + (select count(*) from ended where state = 'skipped')
    where d.id = p_redrive_id and exists (select from ended)
$$;

-- A single replay is a redrive of one: the same path, the same trail, from Python and from psql.
create function redrive.replay(
    p_event_id uuid, p_generation bigint, p_by text, p_reason text, p_now timestamptz, p_from_start boolean default false
) returns void language plpgsql as $$
declare
    o         redrive.outbox%rowtype;
    v_now     timestamptz := redrive.moment(p_now);
    v_redrive uuid := redrive.uuid7();
    v_why     text;
begin
    if coalesce(trim(p_by), '') = '' then
        raise exception 'a replay needs a name: say who replays event %', p_event_id using errcode = 'RD400';
    end if;
    -- its last replay may have ended without anybody having written down how; before the event is locked (see above)
    perform redrive.note_outcomes(i.redrive_id, p_now)
    from (select x.redrive_id from redrive.redrive_item x where x.event_id = p_event_id and x.state = 'released') i;
    select * into o from redrive.outbox where id = p_event_id for update;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'RD404';
    elsif o.status <> 'failed' then
        raise exception 'event % is %: only a dead letter can be replayed', p_event_id, o.status using errcode = 'RD409';
    elsif o.deleted_at is not null then
        raise exception 'event % was discarded: restore it first, then replay it', p_event_id using errcode = 'RD409';
    end if;
    insert into redrive.redrive (id, state, selection, sentence, total, ready, planned_by, planned_at, expires_at,
        started_by, started_at, reason, generation, from_start, max_in_flight)
    values (v_redrive, 'running', 'id:' || p_event_id, 'one dead letter of ' || o.target, 1, 1, p_by, v_now,
        v_now + interval '1 day', p_by, v_now, p_reason, p_generation, p_from_start, 1);
    insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, state)
    values (v_redrive, 1, p_event_id, o.cycle, o.fingerprint, 'ready');
    insert into redrive.redrive_group (fingerprint, redrive_id, members)
    select o.fingerprint, v_redrive, 1 where o.fingerprint is not null;
    select r.why into v_why from redrive.release(v_redrive, 1, 0, null, 'operator', p_now) r;
    if not found then
        raise exception 'event % has just been released by a redrive: look at it again', p_event_id using errcode = 'RD409';
    elsif v_why is not null then
        raise exception 'event % cannot be replayed: %', p_event_id, v_why using errcode = 'RD409';
    end if;
exception when unique_violation then  -- somebody published its retry key in this very moment
    raise exception 'event % cannot be replayed: another event with its retry key is under way', p_event_id
        using errcode = 'RD409';
end $$;

create function redrive.outbox_replay(event_id uuid, p_new_generation bigint, p_replayed_by text)
returns void language sql as $$
    select redrive.replay(event_id, p_new_generation, p_replayed_by, 'outbox_replay', null)
$$;

-- What a payload was before somebody edited it for a replay.
create table redrive.payload_revision (
    event_id    uuid not null,
    revision    int not null,
    payload     json not null,
    replaced_by text not null,
    reason      text not null,
    replaced_at timestamptz not null,
    primary key (event_id, revision)
);

-- What holds for everybody who works on this database, whatever their app says.
create table redrive.setting (
    name   text primary key,
    value  json not null,
    set_by text not null,
    set_at timestamptz not null
);
