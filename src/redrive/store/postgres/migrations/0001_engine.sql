-- The engine: one table of events, and what stands beside it.
--
--   outbox         an event for one target; its status says who may move it next
--   event_handled  idempotency keys whose effect has been committed
--   session        one row a worker process: the lease of everything it holds
--   trail          what happened, append-only and hash-chained, one chain a writer
--
-- Same columns as on SQLite. Instants are timestamptz here and microseconds there.

create schema if not exists redrive;

create table redrive.schema_version (
    version    int primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table redrive.outbox (
    id              uuid primary key,
    type            text not null,
    source          text not null default '',
    target          text not null,
    subject         text,
    headers         json not null default '{}',
    idempotency_key text not null,
    retry_key       text,
    correlation_id  text,
    causation_id    text,
    ordering_key    text,
    batch_id        uuid,
    batch_group     text,
    queue           text not null default 'default',
    priority        smallint not null default 1 check (priority between 0 and 3),
    status          text not null default 'pending'
                    check (status in ('pending', 'in_flight', 'delivered', 'failed', 'blocked', 'cancelled')),
    due_at          timestamptz not null default clock_timestamp(),
    attempts        int not null default 0,
    lost_count      int not null default 0,
    deferred_count  int not null default 0,
    max_attempts    int,
    fence           bigint not null default 0,
    session_id      uuid,
    lease_until     timestamptz,
    deadline_at     timestamptz,
    generation      bigint not null default 0,
    cycle           int not null default 0,
    blocked_on      text,
    degraded        boolean not null default false,
    passed          boolean not null default false,
    first_failed_at timestamptz,
    last_error      text,
    error_class     text,
    error_type      text,
    safe_to_retry   boolean,
    fingerprint     text,
    failure_history jsonb not null default '[]',
    cancelled_by    text,
    cancel_reason   text,
    compensation    text,
    steps_from      int not null default 0,
    created_at      timestamptz not null default clock_timestamp(),
    ended_at        timestamptz,
    deleted_at      timestamptz,
    payload         json not null
) with (
    -- Every event is updated twice within seconds; the defaults (20 %) would wait for millions of dead rows.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- A row in motion stands in few indexes: each costs an entry for every claim and every settle.
create index outbox_due on redrive.outbox (queue, priority, generation, due_at) where status = 'pending';
create index outbox_in_flight on redrive.outbox (session_id) where status = 'in_flight';
create index outbox_ended on redrive.outbox (ended_at) where status in ('delivered', 'cancelled');
create index outbox_failed on redrive.outbox (id) where status = 'failed';
create unique index outbox_retry_key on redrive.outbox (target, retry_key)
    where retry_key is not null and status in ('pending', 'in_flight', 'blocked');
create index outbox_correlation on redrive.outbox (correlation_id) where correlation_id is not null;

create table redrive.event_handled (
    target          text not null,
    idempotency_key text not null,
    event_id        uuid not null,
    handled_at      timestamptz not null default clock_timestamp(),
    primary key (target, idempotency_key)
);
create index event_handled_at on redrive.event_handled (handled_at);

create table redrive.session (
    id          uuid primary key,
    name        text not null,
    host        text not null,
    pid         int not null,
    queues      text[] not null,
    targets     text[] not null,
    concurrency int not null,
    generation  bigint not null default 0,
    started_at  timestamptz not null default clock_timestamp(),
    seen_at     timestamptz not null default clock_timestamp(),
    lease_until timestamptz not null,
    ended_at    timestamptz
) with (fillfactor = 50);

create table redrive.trail (
    chain    text not null,
    seq      bigint not null,
    at       timestamptz not null,
    event_id uuid,
    kind     text not null,
    source   text not null default '',
    actor    text not null,
    detail   text not null,
    hash     text not null,
    primary key (chain, seq)
);
create index trail_event on redrive.trail (event_id) where event_id is not null;

create function redrive.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'the trail is append-only: % is refused', tg_op using errcode = 'RD403';
end $$;

create trigger trail_is_append_only before update or delete on redrive.trail
    for each row execute function redrive.refuse_change();
create trigger trail_is_never_emptied before truncate on redrive.trail
    for each statement execute function redrive.refuse_change();

create function redrive.iso(p_at timestamptz) returns text language sql immutable parallel safe as $$
    select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- The time for what becomes due now, read after this transaction has its number. The claim's watermark relies on it:
-- whoever reads the clock first and waits for a lock then would commit a row to the left of where claims look.
create function redrive.moment(p_now timestamptz) returns timestamptz language sql volatile as $$
    select case when pg_current_xact_id() is not null then coalesce(p_now, clock_timestamp()) end
$$;

-- A time-ordered id (version 7), for events that are published from SQL alone.
create function redrive.uuid7() returns uuid language sql volatile as $$
    select encode(
        set_byte(
            overlay(uuid_send(gen_random_uuid())
                placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                from 1 for 6),
            6, (get_byte(uuid_send(gen_random_uuid()), 0) & 15) | 112),
        'hex')::uuid
$$;

-- The only writer of the trail. The chain is locked to the end of the transaction, so two writers
-- cannot continue from the same entry; redrive/trail.py computes the same hash to verify it.
create function redrive.write_trail(
    p_chain text, p_at timestamptz, p_event_ids uuid[], p_kinds text[], p_sources text[], p_actors text[], p_details text[]
) returns void language plpgsql as $$
declare
    v_seq    bigint;
    v_hash   text;
    v_micros text := (extract(epoch from p_at) * 1000000)::bigint::text;
    v_hashes text[] := '{}';
    v_entry  record;
begin
    if p_event_ids is null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('redrive.trail:' || p_chain, 0));
    select seq, hash into v_seq, v_hash from redrive.trail where chain = p_chain order by seq desc limit 1;
    v_seq := coalesce(v_seq, 0);
    v_hash := coalesce(v_hash, '');
    for v_entry in
        select * from unnest(p_event_ids, p_kinds, p_sources, p_actors, p_details)
            with ordinality as e(event_id, kind, source, actor, detail, n)
    loop
        v_hash := encode(sha256(convert_to(
            v_hash || E'\n' || p_chain || E'\n' || (v_seq + v_entry.n) || E'\n' || v_micros || E'\n'
            || coalesce(v_entry.event_id::text, '') || E'\n' || v_entry.kind || E'\n'
            || length(v_entry.source) || ':' || v_entry.source || E'\n'
            || length(v_entry.actor) || ':' || v_entry.actor || E'\n' || v_entry.detail, 'UTF8')), 'hex');
        v_hashes := v_hashes || v_hash;
    end loop;
    insert into redrive.trail (chain, seq, at, event_id, kind, source, actor, detail, hash)
    select p_chain, v_seq + e.n, p_at, e.event_id, e.kind, e.source, e.actor, e.detail, e.hash
    from unnest(p_event_ids, p_kinds, p_sources, p_actors, p_details, v_hashes)
        with ordinality as e(event_id, kind, source, actor, detail, hash, n);
end $$;

-- Put an event in, from SQL, in the caller's transaction. Answers the live event when the retry key has one.
create function redrive.publish(
    p_type text, p_payload json, p_target text default null, p_subject text default null, p_source text default 'sql-direct',
    p_retry_key text default null, p_idempotency_key text default null, p_correlation_id text default null,
    p_causation_id text default null, p_queue text default 'default', p_priority smallint default 1::smallint,
    p_delay interval default interval '0', p_headers json default '{}', p_generation bigint default 0,
    p_ordering_key text default null
) returns uuid language plpgsql as $$
declare
    v_id   uuid := redrive.uuid7();
    v_now  timestamptz := redrive.moment(null);
    v_live uuid;
begin
    loop
        insert into redrive.outbox as o (
            id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
            ordering_key, queue, priority, due_at, generation, created_at)
        values (
            v_id, p_type, p_source, coalesce(p_target, p_type), p_subject, p_payload, p_headers,
            coalesce(p_idempotency_key, v_id::text), p_retry_key, p_correlation_id, p_causation_id,
            p_ordering_key, p_queue, p_priority, v_now + greatest(p_delay, interval '0'), p_generation, v_now)
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

-- The quarantine, for people with nothing but psql.
create view redrive.dead_letters as
select id, type, target, subject, error_class, error_type, left(last_error, 200) as error, attempts, cycle,
       safe_to_retry, first_failed_at, ended_at as failed_at, retry_key, idempotency_key, correlation_id, causation_id,
       generation, payload
from redrive.outbox
where status = 'failed' and deleted_at is null;
