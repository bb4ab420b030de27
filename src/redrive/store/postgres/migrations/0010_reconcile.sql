-- Reconciling: what should be, compared with what is.
--
--   reconciler      one row a name: when it was last looked at; whoever writes findings of it locks the row
--   reconcile_run   one comparison of both sides: what it found, what it did, how it ended
--   finding         one row a key that differed: since when, how often, and what was done about it

create table redrive.reconciler (
    name      text primary key,
    looked_at timestamptz,
    looked_by text
) with (fillfactor = 50);

create table redrive.reconcile_run (
    id         uuid primary key,
    name       text not null,
    event_id   uuid,
    started_by text not null,
    dry_run    boolean not null default false,
    state      text not null default 'running' check (state in ('running', 'done', 'failed')),
    started_at timestamptz not null,
    ended_at   timestamptz,
    compared   bigint not null default 0,
    missing    bigint not null default 0,
    extra      bigint not null default 0,
    different  bigint not null default 0,
    published  bigint not null default 0,
    coalesced  bigint not null default 0,
    healed     bigint not null default 0,
    sample     json not null default '[]',
    error      text
);
create index reconcile_run_name on redrive.reconcile_run (name, started_at desc);
create index reconcile_run_running on redrive.reconcile_run (id) where state = 'running';
create index reconcile_run_ended on redrive.reconcile_run (ended_at) where state <> 'running';

create table redrive.finding (
    id             uuid primary key,
    name           text not null,
    key            text not null,
    kind           text not null check (kind in ('missing', 'extra', 'different')),
    desired        json,
    actual         json,
    state          text not null default 'open' check (state in ('open', 'healed', 'ignored')),
    first_seen_at  timestamptz not null,
    last_seen_at   timestamptz not null,
    seen_count     bigint not null default 1,
    returned_count bigint not null default 0,
    run_id         uuid not null,
    event_id       uuid,
    converged_at   timestamptz,
    healed_at      timestamptz,
    note           text,
    noted_by       text
);
create unique index finding_key on redrive.finding (name, key);
create index finding_standing on redrive.finding (name, last_seen_at) where state <> 'healed';
create index finding_healed on redrive.finding (healed_at) where state = 'healed';
create index finding_run on redrive.finding (run_id);
