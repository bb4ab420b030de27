-- Live policies, and limits that hold over all workers.
--
--   policy_override  what an operator says about the handlers that a pattern matches
--   policy_version   one row, raised with every change: workers ask whether there is anything to read
--   throttle         one row a target whose rate is limited: until when its permits are given away
--   throttle_use     how many permits a session holds of a target that may run only so often at once
--
-- What has to wait for its limit is `blocked` on `throttle:` and its lane and target, so that whoever has a permit to
-- give finds the first of them by the index.

create table redrive.policy_override (
    pattern  text primary key,
    "values" json not null,
    set_by   text not null,
    set_at   timestamptz not null,
    reason   text not null
);

create table redrive.policy_version (
    id      int primary key check (id = 1),
    version bigint not null
);
insert into redrive.policy_version (id, version) values (1, 1);

create table redrive.throttle (
    target  text primary key,
    free_at timestamptz not null
) with (fillfactor = 50);

create table redrive.throttle_use (
    target     text not null,
    session_id uuid not null,
    used       int not null,
    primary key (target, session_id)
) with (fillfactor = 50);
