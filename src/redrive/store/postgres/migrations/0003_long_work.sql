-- Long work: attempts with a time limit, and events that are called off while they run.
-- Both indexes are all but empty: rows stand in them only while somebody has to be told.

create index outbox_expired on redrive.outbox (lease_until) where status = 'in_flight' and lease_until is not null;
create index outbox_cancelled on redrive.outbox (session_id) where status = 'cancelled' and session_id is not null;

-- End events that have not ended, any number at once; answers those it ended. What another transaction is moving at this
-- moment is passed over: ask again. A worker that runs one of them finds its lease gone and can settle nothing; it learns
-- by its session's id, which stays on the row until it has heard.
create function redrive.cancel_all(p_event_ids uuid[], p_by text, p_reason text, p_now timestamptz default null)
returns setof uuid language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    if coalesce(trim(p_by), '') = '' or coalesce(trim(p_reason), '') = '' then
        raise exception 'cancelling events needs a name and a reason' using errcode = 'RD400';
    end if;
    return query
    with picked as materialized (
        select o.id, o.status, o.source from redrive.outbox o
        where o.id = any(p_event_ids) and o.status in ('pending', 'in_flight', 'blocked')
        order by o.id for update skip locked
    ), cancelled as (
        update redrive.outbox o
        set status = 'cancelled', ended_at = v_now, cancelled_by = p_by, cancel_reason = p_reason,
            session_id = case when p.status = 'in_flight' then o.session_id end
        from picked p where o.id = p.id
        returning o.id, p.status, p.source
    ), trailed as (
        select redrive.write_trail('operator', v_now, array_agg(c.id), array_agg('cancelled'::text), array_agg(c.source),
            array_agg(p_by), array_agg(json_build_object('reason', p_reason, 'was', c.status)::text))
        from cancelled c
    )
    select c.id from cancelled c, trailed;
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
    select status into v_status from redrive.outbox where id = p_event_id for update;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'RD404';
    elsif v_status not in ('pending', 'in_flight', 'blocked') then
        raise exception 'event % is % already: nothing is left to cancel', p_event_id, v_status using errcode = 'RD409';
    end if;
    perform redrive.cancel_all(array[p_event_id], p_by, p_reason, p_now);
end $$;
