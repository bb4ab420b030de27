-- Lock order: events, then their batches, then the operators' chain of the trail. A cancel took the chain first and came to
-- the batch of its event when it committed: with somebody who closed or forced that batch meanwhile it was a deadlock, and
-- while a batch was kept from it by a long transaction nobody else could act.

-- Like before, but the batches are looked at before the trail is written.
create or replace function redrive.cancel_all(p_event_ids uuid[], p_by text, p_reason text, p_now timestamptz default null)
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
    set constraints redrive.outbox_batch_look immediate;
    set constraints redrive.outbox_batch_look deferred;
    perform redrive.write_trail('operator', v_now, v_ids, array_fill('cancelled'::text, array[cardinality(v_ids)]),
        v_sources, array_fill(p_by, array[cardinality(v_ids)]), v_facts);
    return query select unnest(v_ids);
end $$;
