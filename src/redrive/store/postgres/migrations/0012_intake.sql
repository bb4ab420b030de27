-- Transports: what came in from brokers, and how it goes between us and them.
--
--   intake_seen      which messages have been stored, by source and id: a repetition is not stored again
--   intake_lease     which process subscribes, where only one may at a time
--   transport_state  one row a route or intake and worker: how it stands, written on change

create table redrive.intake_seen (
    source     text not null,
    message_id text not null,
    event_id   uuid not null,
    seen_at    timestamptz not null,
    primary key (source, message_id)
);
create index intake_seen_at on redrive.intake_seen (seen_at);

create table redrive.intake_lease (
    name   text primary key,
    holder text not null,
    until  timestamptz not null
);

create table redrive.transport_state (
    name        text not null,
    worker      text not null,
    kind        text not null,
    broker      text not null,
    destination text not null,
    state       text not null,
    since       timestamptz,
    error       text not null,
    ok_at       timestamptz,
    moved_count bigint not null,
    lag         bigint,
    written_at  timestamptz not null,
    primary key (name, worker)
);
