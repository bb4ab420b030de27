-- Steps: what an event has done so far, and what undoes it.
--
--   step   one finished step of a handler, its result, and which compensation undoes it
--
-- A step counts from the cycle in outbox.steps_from on; a replay from the start moves that, and older ones stay to be
-- seen. Compensations are events (type redrive.compensate), one a step, the last step first: the triggers below publish
-- the first in the transaction that ends an event, and the next in the one that ends a compensation, whoever does it.

create table redrive.step (
    event_id        uuid not null,
    cycle           int not null,
    name            text not null,
    position        int not null,
    state           text not null check (state in ('started', 'done', 'compensating', 'compensated', 'skipped')),
    key             text not null,
    result          json,
    compensation    text,
    compensation_id uuid,
    compensate_on   text not null default '',
    fence           bigint not null,
    started_at      timestamptz not null,
    ended_at        timestamptz,
    primary key (event_id, cycle, name)
);
create unique index step_compensation on redrive.step (compensation_id) where compensation_id is not null;

-- Say how an event has ended, in the words of compensate_on.
create function redrive.ending(o redrive.outbox) returns text language sql immutable as $$
    select case when o.status = 'cancelled' then 'cancelled'
                when o.error_type like '%DeadlinePassed'
                    or (o.error_class = 'timed_out' and o.ended_at >= o.deadline_at) then 'deadline'
                else 'dead_letter' end
$$;

-- Publish the compensation of the last step that waits for one; when none is left, the event is compensated.
create function redrive.compensate_next(p_event_id uuid, p_ended_at timestamptz) returns void language plpgsql as $$
declare
    v_queue text;
begin
    perform from redrive.outbox where id = p_event_id for update;  -- one at a time: a late step may come in
    insert into redrive.outbox (
        id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, queue,
        priority, due_at, generation, created_at)
    select s.compensation_id, 'redrive.compensate', o.source, s.compensation, o.subject, coalesce(s.result, 'null'),
           json_build_object('step', s.name, 'step-key', s.key), s.compensation_id::text, coalesce(o.correlation_id, o.id::text), o.id::text, o.queue,
           o.priority, m.now, o.generation, m.now
    from (select * from redrive.step x where x.event_id = p_event_id and x.state = 'compensating'
          order by x.position desc, x.started_at desc limit 1) s
    join redrive.outbox o on o.id = s.event_id
    cross join (select greatest(p_ended_at, redrive.moment(null)) as now offset 0) m
    returning queue into v_queue;
    if v_queue is null then
        update redrive.outbox set compensation = 'done' where id = p_event_id;
    else
        perform pg_notify('redrive', v_queue);
    end if;
end $$;

-- An event has ended without being delivered: undo its steps, where they asked for that.
create function redrive.compensate() returns trigger language plpgsql as $$
begin
    update redrive.step s set state = 'compensating'
    where s.event_id = new.id and s.cycle >= new.steps_from and s.state in ('started', 'done')
      and s.compensation_id is not null
      and redrive.ending(new) = any(string_to_array(s.compensate_on, ','));
    if found then
        update redrive.outbox set compensation = 'pending' where id = new.id;
        perform redrive.compensate_next(new.id, new.ended_at);
    end if;
    return null;
end $$;

-- A compensation has ended, or is replayed. One that was cancelled has been seen to by whoever cancelled it.
create function redrive.compensated() returns trigger language plpgsql as $$
declare
    v_event_id uuid;
begin
    if new.status in ('delivered', 'cancelled') then
        update redrive.step set state = case new.status when 'delivered' then 'compensated' else 'skipped' end
        where compensation_id = new.id and state = 'compensating'
        returning event_id into v_event_id;
        if v_event_id is not null then
            perform redrive.compensate_next(v_event_id, new.ended_at);
        end if;
    else
        update redrive.outbox o set compensation = case new.status when 'failed' then 'failed' else 'pending' end
        where o.id = (select s.event_id from redrive.step s where s.compensation_id = new.id);
    end if;
    return null;
end $$;

-- A step was finished after its event had ended: the others are being undone or are undone already.
create function redrive.compensate_late() returns trigger language plpgsql as $$
begin
    update redrive.outbox set compensation = 'pending'
    where id = new.event_id and coalesce(compensation, 'done') = 'done';
    if found then
        perform redrive.compensate_next(new.event_id, new.ended_at);
    end if;
    return null;
end $$;
create trigger step_compensate_late after insert on redrive.step for each row
    when (new.state = 'compensating') execute function redrive.compensate_late();

-- Named conditions, so that a claim and a delivery cost a comparison and no call.
create trigger outbox_compensate after update of status on redrive.outbox for each row
    when (new.status in ('failed', 'cancelled') and old.status <> new.status and new.type <> 'redrive.compensate')
    execute function redrive.compensate();
create trigger outbox_compensated after update of status on redrive.outbox for each row
    when (new.type = 'redrive.compensate' and old.status <> new.status
          and (new.status in ('delivered', 'failed', 'cancelled') or old.status = 'failed'))
    execute function redrive.compensated();

-- Steps go with their event.
create function redrive.forget_steps() returns trigger language plpgsql as $$
begin
    delete from redrive.step s using gone g where s.event_id = g.id;
    return null;
end $$;
create trigger outbox_forget_steps after delete on redrive.outbox referencing old table as gone
    for each statement execute function redrive.forget_steps();
