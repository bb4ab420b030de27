-- The engine: one table of events, and what stands beside it.
--
--   redrive_outbox         an event for one target; its status says who may move it next
--   redrive_event_handled  idempotency keys whose effect has been committed
--   redrive_session        one row a worker process: the lease of everything it holds
--   redrive_trail          what happened, append-only and hash-chained, one chain a writer
--   redrive_clock          the highest time this file has seen, so that a clock set back runs nothing early
--
-- Same columns as on PostgreSQL. Instants are microseconds since 1970 (UTC) here; the view shows them readably.

create table redrive_schema_version (
    version    integer primary key,
    name       text not null,
    applied_at integer not null
);

create table redrive_outbox (
    seq             integer primary key,  -- SQLite only: the row's place in the file, never shown
    id              text not null unique,
    type            text not null,
    source          text not null default '',
    target          text not null,
    subject         text,
    headers         text not null default '{}',
    idempotency_key text not null,
    retry_key       text,
    correlation_id  text,
    causation_id    text,
    ordering_key    text,
    batch_id        text,
    batch_group     text,
    queue           text not null default 'default',
    priority        integer not null default 1 check (priority between 0 and 3),
    status          text not null default 'pending'
                    check (status in ('pending', 'in_flight', 'delivered', 'failed', 'blocked', 'cancelled')),
    due_at          integer not null,
    attempts        integer not null default 0,
    lost_count      integer not null default 0,
    deferred_count  integer not null default 0,
    max_attempts    integer,
    fence           integer not null default 0,
    session_id      text,
    lease_until     integer,
    deadline_at     integer,
    generation      integer not null default 0,
    cycle           integer not null default 0,
    blocked_on      text,
    degraded        integer not null default 0,
    passed          integer not null default 0,
    first_failed_at integer,
    last_error      text,
    error_class     text,
    error_type      text,
    safe_to_retry   integer,
    fingerprint     text,
    failure_history text not null default '[]',
    cancelled_by    text,
    cancel_reason   text,
    compensation    text,
    steps_from      integer not null default 0,
    created_at      integer not null,
    ended_at        integer,
    deleted_at      integer,
    payload         text not null  -- last, so that reading a status never walks the pages of a large payload
);

create index redrive_outbox_due on redrive_outbox (queue, priority, generation, due_at) where status = 'pending';
create index redrive_outbox_in_flight on redrive_outbox (session_id) where status = 'in_flight';
create index redrive_outbox_ended on redrive_outbox (ended_at) where status in ('delivered', 'cancelled');
create index redrive_outbox_failed on redrive_outbox (id) where status = 'failed';
create unique index redrive_outbox_retry_key on redrive_outbox (target, retry_key)
    where retry_key is not null and status in ('pending', 'in_flight', 'blocked');
create index redrive_outbox_correlation on redrive_outbox (correlation_id) where correlation_id is not null;

create table redrive_event_handled (
    target          text not null,
    idempotency_key text not null,
    event_id        text not null,
    handled_at      integer not null,
    primary key (target, idempotency_key)
) without rowid;
create index redrive_event_handled_at on redrive_event_handled (handled_at);

create table redrive_session (
    id          text primary key,
    name        text not null,
    host        text not null,
    pid         integer not null,
    queues      text not null,
    targets     text not null,
    concurrency integer not null,
    generation  integer not null default 0,
    started_at  integer not null,
    seen_at     integer not null,
    lease_until integer not null,
    ended_at    integer
);

create table redrive_trail (
    chain    text not null,
    seq      integer not null,
    at       integer not null,
    event_id text,
    kind     text not null,
    source   text not null default '',
    actor    text not null,
    detail   text not null,
    hash     text not null,
    primary key (chain, seq)
) without rowid;  -- a rowid would be a second way to name an entry, and to replace it
create index redrive_trail_event on redrive_trail (event_id) where event_id is not null;

create trigger redrive_trail_no_update before update on redrive_trail
begin select raise(abort, 'the trail is append-only: update is refused'); end;
create trigger redrive_trail_no_delete before delete on redrive_trail
begin select raise(abort, 'the trail is append-only: delete is refused'); end;
-- `insert or replace` deletes without asking the trigger above.
create trigger redrive_trail_no_replace before insert on redrive_trail
when exists (select 1 from redrive_trail where chain = new.chain and seq = new.seq)
begin select raise(abort, 'the trail is append-only: replace is refused'); end;

create table redrive_clock (
    one     integer primary key check (one = 1),
    highest integer not null
);
insert into redrive_clock (one, highest) values (1, 0);

create view redrive_dead_letters as
select id, type, target, subject, error_class, error_type, substr(last_error, 1, 200) as error, attempts, cycle,
       safe_to_retry, strftime('%Y-%m-%dT%H:%M:%SZ', first_failed_at / 1000000, 'unixepoch') as first_failed_at,
       strftime('%Y-%m-%dT%H:%M:%SZ', ended_at / 1000000, 'unixepoch') as failed_at,
       retry_key, idempotency_key, correlation_id, causation_id, generation, payload
from redrive_outbox
where status = 'failed' and deleted_at is null;
