-- Batches: events that belong together, and two notices about them.
--
--   redrive_batch          what was opened; members are events with its id in redrive_outbox.batch_id
--   redrive_batch_notice   the events that a notice will be, made when the batch is opened: whoever ends the last member,
--                          with whatever tool, publishes them without knowing any handler
--
-- Nothing is counted while members move: numbers are read from the members when somebody asks, and once for a notice.
-- The first notice is due when the batch is closed and no member is untried, the final one when none is live. Whoever
-- makes that true publishes it in the same transaction.
-- Differs from PostgreSQL: there is one writer at a time, so nothing has to be locked. What is live is told by `ended_at`,
-- which a claim does not name, so that a claim costs nothing more. The trigger is bound to columns that a delivery does
-- not name: it would double what each costs (31 instead of 16 µs), so the store looks once for all that it delivers
-- (batch_look.sql; 2 µs each).

create table redrive_batch (
    id             text primary key,
    name           text not null,
    source         text not null default '',
    correlation_id text,
    deadline_at    integer,
    leftovers      text not null default 'leave' check (leftovers in ('leave', 'fail')),
    opened_at      integer not null,
    closed_at      integer,
    closed_by      text,
    first_at       integer,
    final_at       integer,
    forced         integer not null default 0,
    first_report   text,
    final_report   text
);
create index redrive_batch_name on redrive_batch (name, id);
create index redrive_batch_unfinished on redrive_batch (id) where final_at is null and closed_at is not null;
create index redrive_batch_deadline on redrive_batch (deadline_at) where final_at is null and deadline_at is not null;

create table redrive_batch_notice (
    id         text primary key,
    batch_id   text not null,
    kind       text not null check (kind in ('first', 'final')),
    type       text not null,
    target     text not null,
    queue      text not null default 'default',
    priority   integer not null default 1,
    generation integer not null default 0
) without rowid;
create index redrive_batch_notice_batch on redrive_batch_notice (batch_id);
create trigger redrive_batch_is_gone after delete on redrive_batch begin
    delete from redrive_batch_notice where batch_id = old.id;
end;

create index redrive_outbox_batch on redrive_outbox (batch_id) where batch_id is not null;
-- The members that have not ended, those first that have not been tried; a replay makes one tried.
create index redrive_outbox_batch_live on redrive_outbox (batch_id, (first_failed_at is not null or cycle > 0))
    where batch_id is not null and ended_at is null;

-- A member comes in.
create trigger redrive_outbox_batch_known before insert on redrive_outbox
when new.batch_id is not null and not exists (select 1 from redrive_batch where id = new.batch_id)
begin select raise(abort, 'there is no such batch: open one, and add to that'); end;
create trigger redrive_outbox_batch_open before insert on redrive_outbox
when new.batch_id is not null and exists (select 1 from redrive_batch where id = new.batch_id and closed_at is not null)
begin select raise(abort, 'the batch is closed: nothing was added, open another for what is left'); end;
create trigger redrive_outbox_batch_deadline after insert on redrive_outbox
when new.batch_id is not null
     and exists (select 1 from redrive_batch where id = new.batch_id and leftovers = 'fail' and deadline_at is not null)
begin
    update redrive_outbox
    set deadline_at = (select min(coalesce(new.deadline_at, b.deadline_at), b.deadline_at) from redrive_batch b
                       where b.id = new.batch_id)
    where seq = new.seq;
end;

-- A member was cancelled, or has failed for the first time or for good.
create trigger redrive_outbox_batch_look after update of first_failed_at, cancel_reason on redrive_outbox
when new.batch_id is not null
     and ((new.ended_at is not null and old.ended_at is null)
          or (new.first_failed_at is not null and old.first_failed_at is null))
     and not exists (
         select 1 from redrive_outbox o where o.batch_id = new.batch_id and o.batch_id is not null
         and o.ended_at is null and (o.first_failed_at is not null or o.cycle > 0) = 0)
begin
    update redrive_batch
    set first_at = coalesce(first_at, new.ended_at, new.first_failed_at),
        final_at = case when not exists (
            select 1 from redrive_outbox o
            where o.batch_id = new.batch_id and o.batch_id is not null and o.ended_at is null)
            then coalesce(new.ended_at, new.first_failed_at) end
    where id = new.batch_id and closed_at is not null and final_at is null;
end;

-- The batch was closed: by then nothing may be left to wait for.
create trigger redrive_batch_look after update of closed_at on redrive_batch
when new.closed_at is not null and old.closed_at is null
     and not exists (
         select 1 from redrive_outbox o where o.batch_id = new.id and o.batch_id is not null
         and o.ended_at is null and (o.first_failed_at is not null or o.cycle > 0) = 0)
begin
    update redrive_batch
    set first_at = new.closed_at,
        final_at = case when not exists (
            select 1 from redrive_outbox o
            where o.batch_id = new.id and o.batch_id is not null and o.ended_at is null) then new.closed_at end
    where id = new.id and final_at is null;
end;

-- A notice is due, or both: keep what they say, and publish the events that were made for them. Reasons are cut: they are
-- for a first look, the quarantine has the rest. What there is none of is not looked for: each look reads all members.
create trigger redrive_batch_tell after update of first_at, final_at on redrive_batch
when (new.first_at is not null and old.first_at is null) or (new.final_at is not null and old.final_at is null)
begin
    update redrive_batch set (first_report, final_report, forced) = (
        select iif(old.first_at is null,
                   json_set(r.report, '$.kind', 'first', '$.forced', json(iif(r.untried > 0, 'true', 'false'))), first_report),
               iif(new.final_at is null, null,
                   json_set(r.report, '$.kind', 'final', '$.forced', json(iif(r.live > 0, 'true', 'false')))),
               new.final_at is not null and r.live > 0
        from (select m.untried, m.pending + m.in_flight + m.blocked as live, json_object(
            'batch_id', new.id, 'name', new.name, 'kind', null, 'forced', null,
            'opened_at', strftime('%Y-%m-%dT%H:%M:%S', new.opened_at / 1000000, 'unixepoch')
                || printf('.%06dZ', new.opened_at % 1000000),
            'closed_at', strftime('%Y-%m-%dT%H:%M:%S', new.closed_at / 1000000, 'unixepoch')
                || printf('.%06dZ', new.closed_at % 1000000),
            'closed_by', new.closed_by,
            'at', strftime('%Y-%m-%dT%H:%M:%S', coalesce(new.final_at, new.first_at) / 1000000, 'unixepoch')
                || printf('.%06dZ', coalesce(new.final_at, new.first_at) % 1000000),
            'total', m.total, 'delivered', m.delivered, 'failed', m.failed, 'cancelled', m.cancelled,
            'leftover', m.pending + m.in_flight + m.blocked, 'recovered', m.recovered,
            'leftover_by_status',
                json_object('pending', m.pending, 'in_flight', m.in_flight, 'blocked', m.blocked),
            'by_class', json(case when m.classed = 0 then '{}' else (
                select json_group_object(c.error_class, c.n) from (
                    select o.error_class, count(*) as n from redrive_outbox o
                    where o.batch_id = new.id and o.batch_id is not null and o.status not in ('delivered', 'cancelled')
                      and o.error_class is not null
                    group by o.error_class order by o.error_class) c) end),
            'by_group', json(case when m.grouped = 0 then '{"complete":0,"failed":0,"partly":0}' else (
                select json_object(
                    'complete', count(iif(g.delivered = g.total, 1, null)),
                    'failed', count(iif(g.delivered = 0 and g.ended = g.total, 1, null)),
                    'partly', count(iif(g.delivered < g.total and not (g.delivered = 0 and g.ended = g.total), 1, null)))
                from (select count(*) as total, count(iif(o.status = 'delivered', 1, null)) as delivered,
                             count(o.ended_at) as ended
                      from redrive_outbox o
                      where o.batch_id = new.id and o.batch_id is not null and o.batch_group is not null
                      group by o.batch_group) g) end),
            'failures', json(case when m.failed = 0 then '[]' else (
                select json_group_array(json_object(
                    'id', f.id, 'type', f.type, 'subject', f.subject, 'group', f.batch_group,
                    'error_class', f.error_class, 'reason', substr(substr(
                        f.last_error || char(10), 1, instr(f.last_error || char(10), char(10)) - 1), 1, 300)))
                from (select * from redrive_outbox o
                      where o.batch_id = new.id and o.batch_id is not null and o.status = 'failed'
                      order by o.id limit 100) f) end),
            'more', max(m.failed - 100, 0)) as report
        from (
            select count(*) as total,
                   count(iif(o.status = 'delivered', 1, null)) as delivered,
                   count(iif(o.status = 'failed', 1, null)) as failed,
                   count(iif(o.status = 'cancelled', 1, null)) as cancelled,
                   count(iif(o.status = 'pending', 1, null)) as pending,
                   count(iif(o.status = 'in_flight', 1, null)) as in_flight,
                   count(iif(o.status = 'blocked', 1, null)) as blocked,
                   count(iif(o.status = 'delivered' and (o.first_failed_at is not null or o.cycle > 0), 1, null))
                       as recovered,
                   count(iif(o.ended_at is null and o.first_failed_at is null and o.cycle = 0, 1, null)) as untried,
                   count(iif(o.status not in ('delivered', 'cancelled'), o.error_class, null)) as classed,
                   count(o.batch_group) as grouped
            from redrive_outbox o where o.batch_id = new.id and o.batch_id is not null) m) r)
    where id = new.id;
    insert into redrive_outbox (
        id, type, source, target, subject, payload, idempotency_key, correlation_id, queue, priority, due_at, generation,
        created_at)
    select n.id, n.type, b.source, n.target, b.name, iif(n.kind = 'first', b.first_report, b.final_report),
           n.kind || ':' || b.id, coalesce(b.correlation_id, b.id), n.queue, n.priority,
           coalesce(new.final_at, new.first_at), n.generation, coalesce(new.final_at, new.first_at)
    from redrive_batch b join redrive_batch_notice n on n.batch_id = b.id
    where b.id = new.id
      and iif(n.kind = 'first', old.first_at is null, new.final_at is not null and old.final_at is null);
end;
