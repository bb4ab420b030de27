-- Live policies, and limits that hold over all workers.
--
--   policy_override  what an operator says about the handlers that a pattern matches
--   policy_version   one row, raised with every change: workers ask whether there is anything to read
--   throttle         one row a target whose rate is limited: until when its permits are given away
--   throttle_use     how many permits a session holds of a target that may run only so often at once
--
-- What has to wait for its limit is `blocked` on `throttle:` and its lane and target, so that whoever has a permit to
-- give finds the first of them by the index.

create table redrive_policy_override (
    pattern text primary key,
    "values" text not null,
    set_by  text not null,
    set_at  integer not null,
    reason  text not null
) without rowid;

create table redrive_policy_version (
    id      integer primary key check (id = 1),
    version integer not null
);
insert into redrive_policy_version (id, version) values (1, 1);

create table redrive_throttle (
    target  text primary key,
    free_at integer not null
) without rowid;

create table redrive_throttle_use (
    target     text not null,
    session_id text not null,
    used       integer not null,
    primary key (target, session_id)
) without rowid;
