-- Long work: attempts with a time limit, and events that are called off while they run.
-- Both indexes are all but empty: rows stand in them only while somebody has to be told.

create index outbox_expired on redrive.outbox (lease_until) where status = 'in_flight' and lease_until is not null;
create index outbox_cancelled on redrive.outbox (session_id) where status = 'cancelled' and session_id is not null;

-- End events that have not ended, any number at once; answers those it ended. What another transaction is moving at this
-- moment is passed over: ask again. A worker that runs one of them finds its lease gone and can settle nothing; it learns
-- by its session's id, which stays on the row until it has heard. The next of their ordering keys may go.
-- Guard: one cancels at a time. Two that each hold what the other's promotion wants would wait for each other.
create function redrive.cancel_all(p_event_ids uuid[], p_by text, p_reason text, p_now timestamptz default null)
returns setof uuid language plpgsql as $$
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_ids     uuid[];
    v_sources text[];
    v_facts   text[];
    v_targets text[];
    v_keys    text[];
begin
    if coalesce(trim(p_by), '') = '' or coalesce(trim(p_reason), '') = '' then
        raise exception 'cancelling events needs a name and a reason' using errcode = 'RD400';
    end if;
    perform pg_advisory_xact_lock(hashtextextended('redrive.cancel', 0));
    with picked as materialized (
        select o.id, o.status from redrive.outbox o
        where o.id = any(p_event_ids) and o.status in ('pending', 'in_flight', 'blocked')
        order by o.id for update skip locked
    ), cancelled as (
        update redrive.outbox o
        set status = 'cancelled', ended_at = v_now, cancelled_by = p_by, cancel_reason = p_reason,
            session_id = case when p.status = 'in_flight' then o.session_id end
        from picked p where o.id = p.id
        returning o.id, p.status as was, o.source, o.target, o.ordering_key
    )
    select array_agg(c.id), array_agg(c.source), array_agg(json_build_object('reason', p_reason, 'was', c.was)::text),
           array_agg(c.target), array_agg(c.ordering_key)
    into v_ids, v_sources, v_facts, v_targets, v_keys
    from (select * from cancelled order by id) c;
    if v_ids is null then
        return;
    end if;
    perform redrive.promote(v_targets, v_keys, p_now);  -- before the trail: everybody takes these locks in this order
    perform redrive.write_trail('operator', v_now, v_ids, array_fill('cancelled'::text, array[cardinality(v_ids)]),
        v_sources, array_fill(p_by, array[cardinality(v_ids)]), v_facts);
    return query select unnest(v_ids);
end $$;

-- End one event that has not ended, or say why that cannot be.
create function redrive.cancel(p_event_id uuid, p_by text, p_reason text, p_now timestamptz default null)
returns void language plpgsql as $$
declare
    v_status text;
begin
    if coalesce(trim(p_by), '') = '' or coalesce(trim(p_reason), '') = '' then
        raise exception 'cancelling event % needs a name and a reason', p_event_id using errcode = 'RD400';
    end if;
    perform pg_advisory_xact_lock(hashtextextended('redrive.cancel', 0));
    select status into v_status from redrive.outbox where id = p_event_id for update;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'RD404';
    elsif v_status not in ('pending', 'in_flight', 'blocked') then
        raise exception 'event % is % already: nothing is left to cancel', p_event_id, v_status using errcode = 'RD409';
    end if;
    perform redrive.cancel_all(array[p_event_id], p_by, p_reason, p_now);
end $$;
