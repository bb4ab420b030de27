-- Hardening: changes that an outside review of version 15 asked for. Each section belongs to one area and can be read alone.
-- Like every migration it only adds: workers of version 15 go on beside it.

-- Redrives: stages, order and gates.

-- Keys: the order of a key, and when it is free.

-- Claims and settles: a row that somebody else has locked.

-- Sessions: work of a process that is gone.

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

-- Dependencies, failures and classes.
