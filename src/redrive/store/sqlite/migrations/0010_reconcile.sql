-- Reconciling: what should be, compared with what is.
--
--   redrive_reconciler      one row a name: when it was last looked at; whoever writes findings of it locks the row
--   redrive_reconcile_run   one comparison of both sides: what it found, what it did, how it ended
--   redrive_finding         one row a key that differed: since when, how often, and what was done about it

create table redrive_reconciler (
    name      text primary key,
    looked_at integer,
    looked_by text
) without rowid;

create table redrive_reconcile_run (
    id         text primary key,
    name       text not null,
    event_id   text,
    started_by text not null,
    dry_run    integer not null default 0,
    state      text not null default 'running' check (state in ('running', 'done', 'failed')),
    started_at integer not null,
    ended_at   integer,
    compared   integer not null default 0,
    missing    integer not null default 0,
    extra      integer not null default 0,
    different  integer not null default 0,
    published  integer not null default 0,
    coalesced  integer not null default 0,
    healed     integer not null default 0,
    sample     text not null default '[]',
    error      text
) without rowid;
create index redrive_reconcile_run_name on redrive_reconcile_run (name, started_at desc);
create index redrive_reconcile_run_running on redrive_reconcile_run (id) where state = 'running';
create index redrive_reconcile_run_ended on redrive_reconcile_run (ended_at) where state <> 'running';

create table redrive_finding (
    id             text primary key,
    name           text not null,
    key            text not null,
    kind           text not null check (kind in ('missing', 'extra', 'different')),
    desired        text,
    actual         text,
    state          text not null default 'open' check (state in ('open', 'healed', 'ignored')),
    first_seen_at  integer not null,
    last_seen_at   integer not null,
    seen_count     integer not null default 1,
    returned_count integer not null default 0,
    run_id         text not null,
    event_id       text,
    converged_at   integer,
    healed_at      integer,
    note           text,
    noted_by       text
) without rowid;
create unique index redrive_finding_key on redrive_finding (name, key);
create index redrive_finding_standing on redrive_finding (name, last_seen_at) where state <> 'healed';
create index redrive_finding_healed on redrive_finding (healed_at) where state = 'healed';
create index redrive_finding_run on redrive_finding (run_id);
