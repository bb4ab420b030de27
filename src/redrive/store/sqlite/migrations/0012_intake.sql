-- Transports: what came in from brokers, and how it goes between us and them.
--
--   intake_seen      which messages have been stored, by source and id: a repetition is not stored again
--   intake_lease     which process subscribes, where only one may at a time
--   transport_state  one row a route or intake and worker: how it stands, written on change

create table redrive_intake_seen (
    source     text not null,
    message_id text not null,
    event_id   text not null,
    seen_at    integer     not null,
    primary key (source, message_id)
) without rowid;
create index redrive_intake_seen_at on redrive_intake_seen (seen_at);

create table redrive_intake_lease (
    name   text primary key,
    holder text not null,
    until  integer     not null
) without rowid;

create table redrive_transport_state (
    name        text not null,
    worker      text not null,
    kind        text not null,
    broker      text not null,
    destination text not null,
    state       text not null,
    since       integer    ,
    error       text not null,
    ok_at       integer    ,
    moved_count integer not null,
    lag         integer,
    written_at  integer     not null,
    primary key (name, worker)
) without rowid;
