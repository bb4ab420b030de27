-- Dead letters people can work with: groups with one cause, and redrives.
--
--   failure_group    dead letters with one fingerprint; counted in the transaction that makes or moves a dead letter
--   redrive          many replays as one operation: plan, start, release, outcome
--   redrive_item     one member of a redrive: frozen when planned, with its own outcome

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
    state           text not null check (state in ('planned', 'running', 'paused', 'halted', 'done', 'aborted')),
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
    rate            float8,
    max_in_flight   int not null default 2000,
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
    redrive_id  uuid not null references redrive.redrive (id) on delete cascade,
    position    bigint not null,
    event_id    uuid not null,
    cycle       int not null,
    fingerprint text,
    state       text not null check (state in ('ready', 'ineligible', 'released', 'delivered', 'failed_same',
                                               'failed_other', 'skipped')),
    reason      text,
    stage       int,
    released_at timestamptz,
    ended_at    timestamptz,
    primary key (redrive_id, position)
);
create index redrive_item_ready on redrive.redrive_item (redrive_id, position) where state = 'ready';
create index redrive_item_released on redrive.redrive_item (redrive_id, position) where state = 'released';
create unique index redrive_item_event on redrive.redrive_item (event_id) where state = 'released';
create index redrive_item_of_event on redrive.redrive_item (event_id);

-- Add dead letters to their groups (new ones, or restored), and take them out again (replayed, discarded). Groups are locked in the order of their fingerprints, so
-- that two workers that settle for the same groups cannot wait for each other.
create function redrive.count_dead(p_event_ids uuid[], p_sign int, p_is_new boolean, p_now timestamptz) returns void language sql as $$
    insert into redrive.failure_group as g (
        fingerprint, target, type, error_class, error_type, title, dead_count, total_count, first_seen_at, last_seen_at,
        first_generation, last_generation, sample_event_id)
    select o.fingerprint, min(o.target), min(o.type), coalesce(min(o.error_class), ''), coalesce(min(o.error_type), ''),
           left(split_part(coalesce(min(o.last_error), ''), E'\n', 1), 300), p_sign * count(*), case when p_is_new then count(*) else 0 end,
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
create function redrive.release(
    p_redrive_id uuid, p_limit int, p_stage int, p_priority smallint, p_chain text, p_now timestamptz
) returns table (event_id uuid, why text) language sql volatile as $$
    with moment as materialized (
        select redrive.moment(p_now) as now
    ), r as materialized (
        select * from redrive.redrive where id = p_redrive_id for update
    ), picked as materialized (
        select i.position, i.event_id, i.fingerprint, o.source, o.queue, o.cycle + 1 as next_cycle,
               coalesce(r.generation, o.generation) as generation,
               case when o.id is null then 'the event is gone'
                    when o.status <> 'failed' then 'it is ' || o.status
                    when o.deleted_at is not null then 'it was discarded'
                    when o.cycle <> i.cycle then 'it was replayed by somebody else'
                    when exists (select from redrive.event_handled h
                                 where h.target = o.target and h.idempotency_key = o.idempotency_key) then 'already handled'
                    when o.retry_key is not null and (
                        exists (select from redrive.outbox l where l.target = o.target and l.retry_key = o.retry_key
                                and l.status in ('pending', 'in_flight', 'blocked'))
                        or row_number() over (partition by o.target, o.retry_key order by i.position) > 1)
                        then 'another event with its retry key is under way' end as why
        from r
        cross join lateral (select * from redrive.redrive_item x where x.redrive_id = p_redrive_id and x.state = 'ready'
                            order by x.position limit p_limit for update skip locked) i
        left join lateral (select * from redrive.outbox x where x.id = i.event_id for update) o on true
    ), uncounted as (
        update redrive.failure_group g set dead_count = g.dead_count - c.n
        from (select p.fingerprint, count(*) as n from picked p where p.why is null and p.fingerprint is not null
              group by p.fingerprint order by p.fingerprint) c
        where g.fingerprint = c.fingerprint
    ), replayed as (
        update redrive.outbox o set
            status = 'pending', due_at = m.now, attempts = 0, lost_count = 0, deferred_count = 0, degraded = false,
            cycle = o.cycle + 1,
            generation = coalesce(r.generation, o.generation), priority = coalesce(p_priority, o.priority),
            first_failed_at = null, last_error = null, error_class = null, error_type = null, safe_to_retry = null,
            fingerprint = null, ended_at = null,
            failure_history = redrive.with_cycle(o.failure_history, jsonb_build_object(
                'cycle', o.cycle, 'attempts', o.attempts, 'lost_count', o.lost_count,
                'first_failed_at', redrive.iso(o.first_failed_at), 'failed_at', redrive.iso(o.ended_at),
                'last_error', o.last_error, 'error_class', o.error_class, 'error_type', o.error_type,
                'fingerprint', o.fingerprint, 'generation', o.generation,
                'replayed_at', redrive.iso(m.now), 'replayed_by', r.started_by, 'reason', r.reason))
        from moment m, r
        where o.id = any(array(select p.event_id from picked p where p.why is null))
    ), marked as (
        update redrive.redrive_item i set
            state = case when p.why is null then 'released' else 'skipped' end, reason = p.why, stage = p_stage,
            released_at = case when p.why is null then m.now end, ended_at = case when p.why is not null then m.now end
        from picked p, moment m
        where i.redrive_id = p_redrive_id and i.position = p.position
    ), counted as (
        update redrive.redrive d set
            released = d.released + (select count(*) from picked p where p.why is null),
            skipped = d.skipped + (select count(*) from picked p where p.why is not null)
        where d.id = p_redrive_id
    ), trailed as (
        select redrive.write_trail(p_chain, (select now from moment), array_agg(p.event_id), array_agg('replayed'::text),
            array_agg(p.source), array_agg(r.started_by), array_agg(json_build_object('reason', r.reason,
            'generation', p.generation, 'cycle', p.next_cycle, 'redrive', p_redrive_id)::text))
        from picked p, r where p.why is null
    ), woken as (
        select count(pg_notify('redrive', q.queue)) from (select distinct queue from picked where why is null) q
    )
    select p.event_id, p.why from picked p, trailed, woken
$$;

-- Write down how the released members of a redrive ended.
create function redrive.note_outcomes(p_redrive_id uuid, p_now timestamptz) returns void language sql volatile as $$
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
        from (select x.redrive_id, x.position, x.event_id, x.cycle from redrive.redrive_item x
              where x.redrive_id = p_redrive_id and x.state = 'released') w
        left join redrive.outbox o on o.id = w.event_id
        where i.redrive_id = w.redrive_id and i.position = w.position
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
    p_event_id uuid, p_generation bigint, p_by text, p_reason text, p_now timestamptz
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
    select * into o from redrive.outbox where id = p_event_id for update;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'RD404';
    elsif o.status <> 'failed' then
        raise exception 'event % is %: only a dead letter can be replayed', p_event_id, o.status using errcode = 'RD409';
    elsif o.deleted_at is not null then
        raise exception 'event % was discarded: restore it first, then replay it', p_event_id using errcode = 'RD409';
    end if;
    -- its last replay may have ended without anybody having written down how
    perform redrive.note_outcomes(i.redrive_id, p_now)
    from (select distinct x.redrive_id from redrive.redrive_item x where x.event_id = p_event_id and x.state = 'released') i;
    insert into redrive.redrive (id, state, selection, sentence, total, ready, planned_by, planned_at, expires_at,
        started_by, started_at, reason, generation, max_in_flight)
    values (v_redrive, 'running', 'id:' || p_event_id, 'one dead letter of ' || o.target, 1, 1, p_by, v_now,
        v_now + interval '1 day', p_by, v_now, p_reason, p_generation, 1);
    insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, state)
    values (v_redrive, 1, p_event_id, o.cycle, o.fingerprint, 'ready');
    select r.why into v_why from redrive.release(v_redrive, 1, 0, null, 'operator', p_now) r;
    if v_why is not null then
        raise exception 'event % cannot be replayed: %', p_event_id, v_why using errcode = 'RD409';
    end if;
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
