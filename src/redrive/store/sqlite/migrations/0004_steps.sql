-- Steps: what an event has done so far, and what undoes it.
--
--   redrive_step   one finished step of a handler, its result, and which compensation undoes it
--
-- A step counts from the cycle in redrive_outbox.steps_from on; a replay from the start moves that, and older ones stay
-- to be seen. Compensations are events (type redrive.compensate), one a step, the last step first: the triggers below
-- publish the first in the transaction that ends an event, and the next in the one that ends a compensation.
-- Differs from PostgreSQL: the triggers do all of it themselves, there are no functions. They are bound to columns that a
-- claim and a delivery do not name: bound to the status they would cost 6 µs in each of those (16 instead of 10).
-- Whatever ends an event otherwise names one of them; see deliver_named.sql for compensations that are delivered.

create table redrive_step (
    event_id        text not null,
    cycle           integer not null,
    name            text not null,
    position        integer not null,
    state           text not null check (state in ('started', 'done', 'compensating', 'compensated', 'skipped')),
    key             text not null,
    result          text,
    compensation    text,
    compensation_id text,
    compensate_on   text not null default '',
    fence           integer not null,
    started_at      integer not null,
    ended_at        integer,
    primary key (event_id, cycle, name)
) without rowid;
create unique index redrive_step_compensation on redrive_step (compensation_id) where compensation_id is not null;

-- An event has ended without being delivered: undo its steps, where they asked for that.
create trigger redrive_outbox_compensate after update of error_class, cancel_reason on redrive_outbox
when new.status in ('failed', 'cancelled') and old.status <> new.status and new.type <> 'redrive.compensate'
     and exists (select 1 from redrive_step where event_id = new.id)
begin
    update redrive_step set state = 'compensating'
    where event_id = new.id and cycle >= new.steps_from and state in ('started', 'done') and compensation_id is not null
      and instr(',' || compensate_on || ',', ',' ||
          case when new.status = 'cancelled' then 'cancelled'
               when new.error_type like '%DeadlinePassed'
                    or (new.error_class = 'timed_out' and new.ended_at >= new.deadline_at) then 'deadline'
               else 'dead_letter' end || ',') > 0;
    update redrive_outbox set compensation = 'pending'
    where id = new.id and exists (select 1 from redrive_step where event_id = new.id and state = 'compensating');
    insert into redrive_outbox (
        id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, queue,
        priority, due_at, generation, created_at)
    select s.compensation_id, 'redrive.compensate', o.source, s.compensation, o.subject, coalesce(s.result, 'null'),
           json_object('step', s.name, 'step-key', s.key), s.compensation_id, coalesce(o.correlation_id, o.id), o.id, o.queue, o.priority,
           new.ended_at, o.generation, new.ended_at
    from redrive_step s join redrive_outbox o on o.id = s.event_id
    where s.state = 'compensating' and s.event_id = new.id
    order by s.position desc, s.started_at desc limit 1;
end;

-- A compensation has ended. One that was cancelled has been seen to by whoever cancelled it.
create trigger redrive_outbox_compensated after update of compensation, cancel_reason on redrive_outbox
when new.type = 'redrive.compensate' and old.status <> new.status and new.status in ('delivered', 'cancelled')
begin
    update redrive_step set state = case new.status when 'delivered' then 'compensated' else 'skipped' end
    where compensation_id = new.id and state = 'compensating';
    insert into redrive_outbox (
        id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, queue,
        priority, due_at, generation, created_at)
    select s.compensation_id, 'redrive.compensate', o.source, s.compensation, o.subject, coalesce(s.result, 'null'),
           json_object('step', s.name, 'step-key', s.key), s.compensation_id, coalesce(o.correlation_id, o.id), o.id, o.queue, o.priority,
           new.ended_at, o.generation, new.ended_at
    from redrive_step s join redrive_outbox o on o.id = s.event_id
    where s.state = 'compensating' and s.event_id = (select event_id from redrive_step where compensation_id = new.id)
    order by s.position desc, s.started_at desc limit 1;
    update redrive_outbox set compensation = 'done'
    where id = (select event_id from redrive_step where compensation_id = new.id)
      and not exists (select 1 from redrive_step s where s.event_id = redrive_outbox.id and s.state = 'compensating');
end;

-- A step was finished after its event had ended: the others are being undone or are undone already.
create trigger redrive_step_compensate_late after insert on redrive_step
when new.state = 'compensating'
begin
    insert into redrive_outbox (
        id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, queue,
        priority, due_at, generation, created_at)
    select s.compensation_id, 'redrive.compensate', o.source, s.compensation, o.subject, coalesce(s.result, 'null'),
           json_object('step', s.name, 'step-key', s.key), s.compensation_id, coalesce(o.correlation_id, o.id), o.id, o.queue, o.priority,
           new.ended_at, o.generation, new.ended_at
    from redrive_step s join redrive_outbox o on o.id = s.event_id
    where s.state = 'compensating' and s.event_id = new.event_id
      and coalesce(o.compensation, 'done') = 'done'
    order by s.position desc, s.started_at desc limit 1;
    update redrive_outbox set compensation = 'pending'
    where id = new.event_id and coalesce(compensation, 'done') = 'done';
end;

-- A compensation stands in quarantine, or has left it.
create trigger redrive_outbox_compensation_failed after update of error_class on redrive_outbox
when new.type = 'redrive.compensate' and old.status <> new.status and (new.status = 'failed' or old.status = 'failed')
begin
    update redrive_outbox set compensation = case new.status when 'failed' then 'failed' else 'pending' end
    where id = (select event_id from redrive_step where compensation_id = new.id);
end;

-- Steps go with their event.
create trigger redrive_outbox_forget_steps after delete on redrive_outbox
begin delete from redrive_step where event_id = old.id; end;
