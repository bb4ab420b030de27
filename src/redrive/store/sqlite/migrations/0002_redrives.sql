-- Dead letters people can work with: groups with one cause, and redrives.
--
--   redrive_failure_group    dead letters with one fingerprint; counted in the transaction that makes or moves one
--   redrive_redrive          many replays as one operation: plan, start, release, outcome
--   redrive_redrive_item     one member of a redrive: frozen when planned, with its own outcome
--   redrive_redrive_group    how many members of a group a redrive has; a group's past redrives are found here
--   redrive_setting          what holds for everybody who works on this database

create table redrive_failure_group (
    fingerprint      text primary key,
    target           text not null,
    type             text not null,
    error_class      text not null,
    error_type       text not null,
    title            text not null,
    state            text not null default 'new' check (state in ('new', 'ongoing', 'resolved', 'regressed')),
    dead_count       integer not null default 0,
    total_count      integer not null default 0,
    first_seen_at    integer not null,
    last_seen_at     integer not null,
    first_generation integer not null default 0,
    last_generation  integer not null default 0,
    sample_event_id  text not null,
    owner            text,
    note             text,
    muted_until      integer,
    resolved_at      integer,
    resolved_by      text
) without rowid;
create index redrive_failure_group_seen on redrive_failure_group (last_seen_at desc);
create index redrive_outbox_group on redrive_outbox (fingerprint, id) where status = 'failed';

create table redrive_redrive (
    id              text primary key,
    state           text not null check (state in ('planning', 'planned', 'running', 'paused', 'halted', 'done', 'aborted')),
    selection       text not null,
    sentence        text not null,
    digest          text not null default '',
    total           integer not null default 0,
    ready           integer not null default 0,
    planned_by      text not null,
    planned_at      integer not null,
    expires_at      integer not null,
    approved_by     text,
    approved_at     integer,
    started_by      text,
    started_at      integer,
    reason          text,
    generation      integer,
    from_start      integer not null default 0,
    edited          integer not null default 0,
    rate            real,
    max_in_flight   integer not null default 5000,
    ramp            text not null default '[]',
    halt_at         real not null default 0.1,
    stage           integer not null default 0,
    metered_from    integer,
    metered_count   integer not null default 0,
    released        integer not null default 0,
    delivered       integer not null default 0,
    failed_same     integer not null default 0,
    failed_other    integer not null default 0,
    skipped         integer not null default 0,
    stopped_by      text,
    stop_reason     text,
    ended_at        integer
) without rowid;
create index redrive_redrive_running on redrive_redrive (id) where state = 'running';

create table redrive_redrive_item (
    redrive_id  text not null,
    position    integer not null,
    event_id    text not null,
    cycle       integer not null,
    fingerprint text,
    failed_at   integer,
    follows     integer,
    state       text not null check (state in ('ready', 'ineligible', 'released', 'delivered', 'failed_same',
                                               'failed_other', 'skipped')),
    reason      text,
    stage       integer,
    released_at integer,
    ended_at    integer,
    payload     text,
    primary key (redrive_id, position)
) without rowid;
create index redrive_redrive_item_ready on redrive_redrive_item (redrive_id, position) where state = 'ready';
create index redrive_redrive_item_released on redrive_redrive_item (redrive_id, position) where state = 'released';
create unique index redrive_redrive_item_event on redrive_redrive_item (event_id) where state = 'released';
create index redrive_redrive_item_waiting on redrive_redrive_item (event_id) where state = 'ready';

create table redrive_redrive_group (
    fingerprint text not null,
    redrive_id  text not null,
    members     integer not null,
    primary key (fingerprint, redrive_id)
) without rowid;
create trigger redrive_redrive_is_gone after delete on redrive_redrive begin
    delete from redrive_redrive_group where redrive_id = old.id;
end;

-- What a payload was before somebody edited it for a replay.
create table redrive_payload_revision (
    event_id    text not null,
    revision    integer not null,
    payload     text not null,
    replaced_by text not null,
    reason      text not null,
    replaced_at integer not null,
    primary key (event_id, revision)
) without rowid;

-- What holds for everybody who works on this database, whatever their app says.
create table redrive_setting (
    name   text primary key,
    value  text not null,
    set_by text not null,
    set_at integer not null
) without rowid;
