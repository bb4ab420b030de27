-- Hardening: changes that an outside review of version 15 asked for. Each section belongs to one area and can be read alone.
-- Like every migration it only adds: workers of version 15 go on beside it.

-- Redrives: stages, order and gates.
--
-- The order of a key is that of its line: `seq`, as the claim takes it. Members are numbered by their ids, and ids are not
-- always in that order. So each member with a key knows its line and its place there, and only the first of a line that has
-- not ended may be released; the others wait.

alter table redrive_redrive_item add column line text;
alter table redrive_redrive_item add column place integer;
alter table redrive_redrive_item add column waits integer not null default 0;
-- Those that may be released now, however many wait beside them.
create index redrive_redrive_item_free on redrive_redrive_item (redrive_id, position) where state = 'ready' and waits = 0;
create index redrive_redrive_item_line on redrive_redrive_item (redrive_id, line, place)
    where line is not null and state in ('ready', 'released');
-- The members of each stage of a ramp. What is released after the ramp, or without one, has no stage.
create index redrive_redrive_item_stage on redrive_redrive_item (redrive_id, stage, state) where stage is not null;

alter table redrive_redrive add column lined_up integer not null default 0;
alter table redrive_redrive add column gated integer not null default 1;
-- The outcomes that were judged before: the gate counts those since.
alter table redrive_redrive add column judged_delivered integer not null default 0;
alter table redrive_redrive add column judged_same integer not null default 0;
alter table redrive_redrive add column judged_other integer not null default 0;

-- A member has ended, whoever wrote it down: the first of its line need not wait any more.
create trigger redrive_redrive_item_next after update of state on redrive_redrive_item
when new.line is not null and old.state in ('ready', 'released') and new.state not in ('ready', 'released')
begin
    update redrive_redrive_item set waits = 0
    where redrive_id = new.redrive_id and state = 'ready' and waits = 1 and position = (
        select f.position from redrive_redrive_item f
        where f.redrive_id = new.redrive_id and f.line = new.line and f.line is not null and f.state in ('ready', 'released')
        order by f.place limit 1);
end;

-- Keys: the order of a key, and when it is free.

-- What keeps a key: an event in flight, and one that was cancelled while it ran. Its session's id stays on the row until its
-- handler has ended or was given up (told.sql), or until the session is gone (cancelled_gone.sql); only then the next may go.
create view redrive_key_busy as
select seq, id, target, ordering_key from redrive_outbox where ordering_key is not null and status = 'in_flight'
union all
select seq, id, target, ordering_key from redrive_outbox
where ordering_key is not null and status = 'cancelled' and session_id is not null;

-- Claims and settles: a row that somebody else has locked.

-- Sessions: work of a process that is gone.

alter table redrive_session add column process text;  -- its machine, number and beginning, for who can see them

-- Retention: rows that are still needed.

-- Events that share an idempotency key, so that a handled key is kept while one of them could still run. Most events have
-- a key of their own, their id, and cost nothing here.
-- Differs from PostgreSQL: the status is not part of it, or every claim and every delivery would look at it.
create index redrive_outbox_shared_key on redrive_outbox (target, idempotency_key) where idempotency_key <> id;

-- The payloads that an event had before it was edited go with it: nobody could find them any more.
create trigger redrive_outbox_forget_revisions after delete on redrive_outbox
begin delete from redrive_payload_revision where event_id = old.id; end;
delete from redrive_payload_revision where event_id not in (select id from redrive_outbox);

-- Leaps of the file's clock: from `since` to `until` nobody saw time pass (decision 0029).
create table redrive_clock_leap (
    until integer primary key,
    since integer not null
);

-- Publishing by SQL: the limits of publish.

-- Transports: where a consumer group began that starts with the latest message. The broker forgets it, and we do not.

create table redrive_intake_beginning (
    name      text primary key,
    topic_id  text not null,
    positions text not null,
    begun_at  integer not null
) without rowid;

-- Where a message stood: another one with the same id was sent, and not brought again.
alter table redrive_intake_seen add column position text;

-- Dependencies, failures and classes.
