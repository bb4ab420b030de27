-- Hardening: changes that an outside review of version 15 asked for. Each section belongs to one area and can be read alone.
-- Like every migration it only adds: workers of version 15 go on beside it.

-- Redrives: stages, order and gates.
--
-- The order of a key is that of its line: `created_at`, then `id`, as the claim takes it. Members are numbered by their ids,
-- and ids are not always in that order. So each member with a key knows its line and its place there, and only the first of a
-- line that has not ended may be released; the others wait.

alter table redrive.redrive_item add column line text;
alter table redrive.redrive_item add column place timestamptz;
alter table redrive.redrive_item add column waits boolean not null default false;
-- Those that may be released now, however many wait beside them.
create index redrive_item_free on redrive.redrive_item (redrive_id, position) where state = 'ready' and not waits;
create index redrive_item_line on redrive.redrive_item (redrive_id, line, place, event_id)
    where line is not null and state in ('ready', 'released');
-- The members of each stage of a ramp. What is released after the ramp, or without one, has no stage.
create index redrive_item_stage on redrive.redrive_item (redrive_id, stage, state) where stage is not null;

alter table redrive.redrive add column lined_up boolean not null default false;
alter table redrive.redrive add column gated boolean not null default true;
-- The outcomes that were judged before: the gate counts those since.
alter table redrive.redrive add column judged_delivered bigint not null default 0;
alter table redrive.redrive add column judged_same bigint not null default 0;
alter table redrive.redrive add column judged_other bigint not null default 0;

-- Put the members of some lines in order: of each line the first may go, the others wait. `p_until` null: to the last line.
create function redrive.line_up(p_redrive_id uuid, p_after text, p_until text) returns void language sql volatile as $$
    update redrive.redrive_item i set waits = i.state = 'ready' and k.follows is not null, follows = k.follows
    from (select x.position, lag(x.position) over (partition by x.line order by x.place, x.event_id) as follows
          from redrive.redrive_item x
          where x.redrive_id = p_redrive_id and x.line > p_after and (p_until is null or x.line <= p_until)
            and x.line is not null and x.state in ('ready', 'released')) k
    where i.redrive_id = p_redrive_id and i.position = k.position and k.follows is not null
$$;

-- Line up a redrive that a worker of version 15 has planned.
create function redrive.adopt(p_redrive_id uuid) returns void language sql volatile as $$
    update redrive.redrive_item i
    set line = length(o.target) || ':' || o.target || ':' || o.ordering_key, place = o.created_at
    from redrive.outbox o
    where i.redrive_id = p_redrive_id and i.state in ('ready', 'released') and i.line is null
      and o.id = i.event_id and o.ordering_key is not null;
    select redrive.line_up(p_redrive_id, '', null);
    update redrive.redrive set lined_up = true where id = p_redrive_id;
$$;

-- A member has ended, whoever wrote it down: the first of its line need not wait any more.
create function redrive.next_of_line() returns trigger language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    update redrive.redrive_item i set waits = false
    where i.redrive_id = new.redrive_id and i.state = 'ready' and i.waits and i.position = (
        select f.position from redrive.redrive_item f
        where f.redrive_id = new.redrive_id and f.line = new.line and f.line is not null and f.state in ('ready', 'released')
        order by f.place, f.event_id limit 1);
    return null;
end $$;
create trigger redrive_item_next after update of state on redrive.redrive_item for each row
    when (new.line is not null and old.state in ('ready', 'released') and new.state not in ('ready', 'released'))
    execute function redrive.next_of_line();

-- The generation in which an event of a target would be worked on: its own if a worker serves that, else the latest that one serves,
-- else its own. Generation 0 is served by every worker.
create function redrive.served_generation(p_target text, p_queue text, p_generation bigint, p_now timestamptz)
returns bigint language sql stable as $$
    select case when p_generation = 0 then p_generation else coalesce((
        select s.generation from redrive.session s
        where s.ended_at is null and s.lease_until > p_now and p_queue = any(s.queues) and p_target = any(s.targets)
        order by s.generation = p_generation desc, s.generation desc limit 1), p_generation) end
$$;

-- Release the next members of a redrive: send dead letters round again, in place. Every replay goes through here, a
-- single one too. A member that is no longer what was planned is skipped, with the reason; the set can only shrink.
-- Everything is locked first and judged then, by a statement of its own: it sees what others did while we waited.
create or replace function redrive.release(
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
    if not r.lined_up then  -- planned by a worker of version 15
        perform redrive.adopt(p_redrive_id);
    end if;
    select array_agg(n.position), array_agg(n.event_id) into v_next, v_events
    from (select x.position, x.event_id from redrive.redrive_item x
          where x.redrive_id = p_redrive_id and x.state = 'ready' and not x.waits
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
                        and l.status = 'failed' and (l.created_at, l.id) < (o.created_at, o.id))
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
        'generation', coalesce(r.generation, redrive.served_generation(o.target, o.queue, o.generation, v_now)), 'cycle', o.cycle + 1, 'redrive', p_redrive_id,
        'from_start', r.from_start or coalesce(o.compensation, '') = 'done')::text))
    from (select * from redrive.outbox x where x.id = any(v_going) order by x.id) o;
    update redrive.outbox o set
        status = 'pending', due_at = v_now, attempts = 0, lost_count = 0, deferred_count = 0, degraded = false,
        cycle = o.cycle + 1,
        generation = coalesce(r.generation, redrive.served_generation(o.target, o.queue, o.generation, v_now)),
        priority = coalesce(p_priority, o.priority),
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


-- Keys: the order of a key, and when it is free.

-- What keeps a key: an event in flight, and one that was cancelled while it ran. Its session's id stays on the row until its
-- handler has ended or was given up (told.sql), or until the session is gone (cancelled_gone.sql); only then the next may go.
create view redrive.key_busy as
select id, target, ordering_key from redrive.outbox where ordering_key is not null and status = 'in_flight'
union all
select id, target, ordering_key from redrive.outbox
where ordering_key is not null and status = 'cancelled' and session_id is not null;
do $$  -- whoever may read the events may read this
declare
    g record;
begin
    for g in
        select distinct a.grantee from pg_class c, aclexplode(c.relacl) a
        where c.oid = 'redrive.outbox'::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner
    loop
        execute format('grant select on %s to %s', 'redrive.key_busy'::regclass,
                       case g.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(g.grantee)) end);
    end loop;
end $$;

-- Like before, but a cancelled event whose handler runs keeps its key, and the first of a line that somebody else has locked
-- is not waited for: workers that walk through the keys find it, if nobody else lets it go.
create or replace function redrive.take_turns(p_ids uuid[], p_now timestamptz) returns uuid[] language plpgsql
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
           or exists (select from redrive.key_busy f where f.target = p.target and f.ordering_key = p.ordering_key));
    if v_behind is null then
        return p_ids;
    end if;
    select coalesce(array_agg(p.id), '{}') into v_blocked
    from redrive.outbox p
    cross join lateral (
        select f.id from redrive.outbox f
        where f.id = any(array(select b.id from redrive.key_busy b
                               where b.target = p.target and b.ordering_key = p.ordering_key))
        limit 1
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
    perform redrive.promote(array_agg(h.target), array_agg(h.ordering_key), p_now)
    from (select distinct o.target, o.ordering_key from redrive.outbox o where o.id = any(v_blocked)) h
    where redrive.lock_event((
        select l.id from redrive.key_line l where l.target = h.target and l.ordering_key = h.ordering_key
        order by l.created_at, l.id limit 1));
    return array(select id from unnest(p_ids) as id where id <> all(v_behind));
end $$;

-- Like before, but a cancelled event whose handler runs keeps its key.
create or replace function redrive.promote(p_targets text[], p_keys text[], p_now timestamptz, p_wake boolean default true)
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
          and not exists (select from redrive.key_busy b where b.target = k.target and b.ordering_key = k.key);
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

-- Handled keys: a key that another transaction is about to record.

-- Record that a key has had its effect; false: it already had. Waits 5 seconds at most for another transaction that has
-- recorded it and is still open: its worker may stand still. While the transaction is open it is named after its lease,
-- so that a sweep can end it when the lease is gone (end_lost.sql).
create or replace function redrive.mark_handled(
    p_target text, p_key text, p_event uuid, p_fence bigint, p_now timestamptz
) returns boolean language plpgsql set lock_timeout = '5s' as $$
begin
    perform set_config('application_name', 'redrive lease ' || p_event || ' ' || p_fence, true);
    insert into redrive.event_handled (target, idempotency_key, event_id, handled_at)
    values (p_target, p_key, p_event, coalesce(p_now, clock_timestamp()))
    on conflict (target, idempotency_key) do nothing;
    return found;
end
$$;

-- Claims and settles: a row that somebody else has locked.

-- Of events that are to be settled, answer those that would have to wait: somebody else's transaction holds their row, the
-- first in line of their key, their batch, their group of failures, or the event that they compensate. Everything else is
-- locked until the end of the transaction. It waits for nobody, so its locks need no order. p_fingerprints: the group that
-- each of them joins, if it becomes a dead letter.
create function redrive.held(p_ids uuid[], p_fingerprints text[]) returns uuid[] language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_free    uuid[];
    v_batches uuid[];
    v_groups  text[];
begin
    select array_agg(f.id) into v_free from (
        select o.id from redrive.outbox o where o.id = any(p_ids) for no key update skip locked) f;
    select array_agg(b.id) into v_batches from (
        select x.id from redrive.batch x
        where x.id = any(array(select o.batch_id from redrive.outbox o where o.id = any(v_free)))
        for no key update skip locked) b
    where pg_try_advisory_xact_lock(hashtextextended('redrive.batch:' || b.id, 0));
    select array_agg(g.fingerprint) into v_groups from (
        select x.fingerprint from redrive.failure_group x where x.fingerprint = any(p_fingerprints)
        for no key update skip locked) g;
    return array(
        select o.id from redrive.outbox o
        where o.id = any(p_ids) and (
            coalesce(o.id <> all(v_free), true)
            or o.batch_id is not null and coalesce(o.batch_id <> all(v_batches), true)
            or o.ordering_key is not null and exists (
                select from (select l.id from redrive.key_line l
                             where l.target = o.target and l.ordering_key = o.ordering_key
                             order by l.created_at, l.id limit 1) head
                where not redrive.lock_event(head.id))
            or o.type = 'redrive.compensate' and exists (
                select from redrive.step s where s.compensation_id = o.id and not redrive.lock_event(s.event_id)))
        union
        select e.id from unnest(p_ids, p_fingerprints) as e(id, fingerprint)
        join redrive.failure_group g on g.fingerprint = e.fingerprint
        where coalesce(g.fingerprint <> all(v_groups), true));
end $$;

-- Lock an event without waiting; false when somebody else has it.
create function redrive.lock_event(p_id uuid) returns boolean language plpgsql as $$
begin
    perform from redrive.outbox o where o.id = p_id for no key update skip locked;
    return found or not exists (select from redrive.outbox o where o.id = p_id);
end $$;

-- Sessions: work of a process that is gone.

alter table redrive.session add column process text;  -- its machine, number and beginning, for who can see them

-- Retention: rows that are still needed.

-- Events that share an idempotency key, so that a handled key is kept while one of them could still run. Most events have
-- a key of their own, their id, and cost nothing here.
create index outbox_shared_key on redrive.outbox (target, idempotency_key)
    where idempotency_key <> id::text and status in ('pending', 'in_flight', 'blocked', 'failed');

-- Steps go with their event, and so do the payloads it had before it was edited: nobody could find those any more.
create or replace function redrive.forget_steps() returns trigger language plpgsql as $$
begin
    delete from redrive.step s using gone g where s.event_id = g.id;
    delete from redrive.payload_revision r using gone g where r.event_id = g.id;
    return null;
end $$;
delete from redrive.payload_revision r where not exists (select from redrive.outbox o where o.id = r.event_id);

-- Publishing by SQL: the limits of publish.

-- Whether a JSON number with a fraction or an exponent is a double: written with as many digits as it has here, its double
-- gives the same number again (parse_strict in payload.py has the same rule).
create function redrive.is_double(p_number text) returns boolean language plpgsql immutable strict parallel safe as $$
declare
    v_wanted   numeric := abs(p_number::numeric);
    v_bits     bigint;
    v_exponent int;
    v_exact    numeric;
    v_unit     numeric;
    v_off      numeric;
    v_digits   text := trim_scale(v_wanted)::text;
begin
    if v_wanted = 0 then
        return true;
    end if;
    v_bits := ('x' || encode(float8send(abs(p_number::float8)), 'hex'))::bit(64)::bigint;
    v_exponent := greatest((v_bits >> 52)::int, 1) - 1075;
    v_exact := (v_bits & 4503599627370495) + case when v_bits >> 52 > 0 then 4503599627370496 else 0 end;
    if v_exponent >= 0 then
        v_exact := v_exact * trim_scale(2::numeric ^ v_exponent);
    else
        v_exact := v_exact * trim_scale(5::numeric ^ -v_exponent) * ('1e' || v_exponent)::numeric;
    end if;
    v_unit := ('1e' || case when v_digits like '%.%' then -length(split_part(v_digits, '.', 2))
                            else length(v_digits) - length(rtrim(v_digits, '0')) end)::numeric;
    v_off := abs(v_exact - v_wanted) * 2;
    return v_off < v_unit or (v_off = v_unit and right(rtrim(v_digits, '0'), 1) in ('2', '4', '6', '8'));
exception when numeric_value_out_of_range then
    return false;
end $$;

-- Refuse JSON that Python's publish would refuse, in the same words. The limits are those of an app that sets none; another
-- is set with `alter database … set redrive.max_bytes = …`, and redrive.max_depth.
create function redrive.check_json(p_json json, p_what text, p_max_bytes bigint) returns void language plpgsql stable as $$
declare
    v_deepest int := coalesce(nullif(current_setting('redrive.max_depth', true), ''), '64')::int;
    v_plain   text;
    v_same    text;
    v_marks   text;
    v_number  text;
begin
    if p_json is null then
        raise exception '% is NULL: write ''null''::json for an event without one', p_what using errcode = 'RD400';
    end if;
    if octet_length(p_json::text) > p_max_bytes then
        raise exception '% takes % bytes as JSON, at most % are allowed; store it elsewhere and publish a reference', p_what,
            to_char(octet_length(p_json::text), 'FM999,999,999,999'), to_char(p_max_bytes, 'FM999,999,999,999')
            using errcode = 'RD400';
    end if;
    v_plain := regexp_replace(p_json::text, '"(?:[^"\\]|\\.)*"', '"', 'g');  -- without what its texts say
    v_marks := translate(regexp_replace(v_plain, '[^][{}]', '', 'g'), '{}', '[]');
    for v_depth in 0 .. v_deepest loop
        exit when v_marks = '';
        if v_depth = v_deepest then
            raise exception '% is nested deeper than % levels; flatten it', p_what, v_deepest using errcode = 'RD400';
        end if;
        v_marks := replace(v_marks, '[]', '');  -- the innermost ones
    end loop;
    for v_number in
        select n[1] from regexp_matches(v_plain, '[-+.0-9eE]{16,}|[-.0-9]+[eE][-+0-9]+', 'g') as n
    loop
        if v_number !~ '[.eE]' and length(ltrim(v_number, '-')) > 4200 then
            raise exception '% is an integer of more than 4,200 digits; send a string', p_what using errcode = 'RD400';
        elsif v_number ~ '[.eE]' and not redrive.is_double(v_number) then
            raise exception '% has the number %, which a double does not hold exactly; send a string', p_what,
                left(v_number, 40) using errcode = 'RD400';
        end if;
    end loop;
    begin
        v_same := regexp_replace(p_json::jsonb::text, '"(?:[^"\\]|\\.)*"', '"', 'g');
    exception
        when untranslatable_character then
            raise exception '% contains a NUL character, which no database stores as text; remove it', p_what
                using errcode = 'RD400';
        when invalid_text_representation then
            raise exception '% contains a lone surrogate, which is not Unicode text; decode it properly first', p_what
                using errcode = 'RD400';
    end;
    if length(replace(v_same, ':', '')) - length(v_same) <> length(replace(v_plain, ':', '')) - length(v_plain) then
        raise exception '% has a key twice in one object; send it once', p_what using errcode = 'RD400';
    end if;
end $$;

create function redrive.check_headers(p_headers json) returns void language plpgsql stable as $$
begin
    perform redrive.check_json(p_headers, 'headers', 16384);
    if json_typeof(p_headers) <> 'object' then
        raise exception 'headers must be an object, not a %', json_typeof(p_headers) using errcode = 'RD400';
    end if;
    if (select count(*) from json_object_keys(p_headers)) > 100 then
        raise exception '% headers are given, at most 100 are allowed',
            (select count(*) from json_object_keys(p_headers)) using errcode = 'RD400';
    end if;
    if exists (select from json_each(p_headers) where json_typeof(value) <> 'string') then
        raise exception 'headers must be strings: % is not', (
            select 'headers.' || left(key, 64) from json_each(p_headers) where json_typeof(value) <> 'string' limit 1)
            using errcode = 'RD400';
    end if;
    if exists (select from json_object_keys(p_headers) as name where name = '') then
        raise exception 'headers have an empty name' using errcode = 'RD400';
    end if;
end $$;

-- Refuse texts that Python's publish would refuse. A name says what a handler or a queue is called, and is seen on terminals.
create function redrive.check_text(p_value text, p_field text, p_limit int, p_is_name boolean default false) returns void
language plpgsql immutable as $$
begin
    if length(p_value) > p_limit then
        raise exception '% has % characters, at most % are allowed', p_field, to_char(length(p_value), 'FM999,999,999'),
            p_limit using errcode = 'RD400';
    end if;
    if p_is_name and coalesce(p_value, '') = '' then
        raise exception '% is empty: give it a name', p_field using errcode = 'RD400';
    end if;
    if p_is_name and p_value ~ '[\x01-\x1f\x7f]' then
        raise exception '% contains a control character; remove it', p_field using errcode = 'RD400';
    end if;
end $$;

create or replace function redrive.publish(
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
    perform redrive.check_text(p_type, 'type', 255, true);
    perform redrive.check_text(coalesce(p_target, p_type), 'target', 255, true);
    perform redrive.check_text(p_queue, 'queue', 255, true);
    perform redrive.check_text(t.value, t.field, t.most) from (values
        (coalesce(p_source, ''), 'source', 255), (p_subject, 'subject', 512), (p_retry_key, 'retry_key', 512),
        (p_idempotency_key, 'idempotency_key', 512), (p_correlation_id, 'correlation_id', 255),
        (p_causation_id, 'causation_id', 255), (p_ordering_key, 'ordering_key', 512), (p_batch_group, 'batch_group', 512)
    ) as t(value, field, most);
    perform redrive.check_json(
        p_payload, 'payload', coalesce(nullif(current_setting('redrive.max_bytes', true), ''), '1048576')::bigint);
    if p_headers::text <> '{}' then
        perform redrive.check_headers(p_headers);
    end if;
    if p_priority is null or p_priority not between 0 and 3 then
        raise exception 'priority must be one of 0 (high), 1 (normal), 2 (low), 3 (redriven), not %', p_priority
            using errcode = 'RD400';
    end if;
    if p_generation is null or p_generation < 0 then
        raise exception 'generation must be a whole number from 0 to 9223372036854775807' using errcode = 'RD400';
    end if;
    if p_delay is null or extract(epoch from p_delay) > 3155760000 then
        raise exception 'delay must be at most 100 years' using errcode = 'RD400';
    end if;
    loop
        insert into redrive.outbox as o (
            id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
            ordering_key, batch_id, batch_group, queue, priority, due_at, generation, created_at)
        values (
            v_id, p_type, coalesce(p_source, ''), coalesce(p_target, p_type), p_subject, p_payload,
            coalesce(p_headers, '{}'), coalesce(p_idempotency_key, v_id::text), p_retry_key, p_correlation_id,
            p_causation_id, p_ordering_key, p_batch_id, p_batch_group, p_queue, p_priority,
            v_now + greatest(p_delay, interval '0'), p_generation, v_now)
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

-- Transports: where a consumer group began that starts with the latest message. The broker forgets it, and we do not.

create table redrive.intake_beginning (
    name      text primary key,
    topic_id  text not null,
    positions text not null,
    begun_at  timestamptz not null
);

-- Where a message stood: another one with the same id was sent, and not brought again.
alter table redrive.intake_seen add column position text;

-- Dependencies, failures and classes.

-- Write down how the released members of a redrive ended. Guard: whoever waited for the redrive must look again.
-- Fingerprints of two versions cannot be compared: then the same type of exception is the same failure.
create or replace function redrive.note_outcomes(p_redrive_id uuid, p_now timestamptz) returns void language sql volatile
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
    select from redrive.redrive where id = p_redrive_id for update;
    with ended as (
        update redrive.redrive_item i
        set state = case
                when o.id is null then 'skipped'
                when o.status = 'delivered' then 'delivered'
                when o.status = 'cancelled' then 'skipped'
                when o.fingerprint is not distinct from i.fingerprint then 'failed_same'
                when split_part(o.fingerprint, ':', 1) <> split_part(i.fingerprint, ':', 1)
                    and o.fingerprint like '%:%' and i.fingerprint like '%:%'
                    and exists (select from redrive.failure_group g
                                where g.fingerprint = i.fingerprint and g.error_type = o.error_type)
                    then 'failed_same'
                else 'failed_other' end,
            reason = case when o.id is null then 'the event is gone' when o.status = 'cancelled' then 'it was cancelled' end,
            ended_at = coalesce(o.ended_at, p_now, clock_timestamp())
        from (select x.ctid as place, x.event_id, x.cycle from redrive.redrive_item x  -- nobody moves it: we hold the redrive
              where x.redrive_id = p_redrive_id and x.state = 'released') w
        left join lateral (select x.id, x.status, x.cycle, x.fingerprint, x.error_type, x.ended_at from redrive.outbox x
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
