-- What events wait for: dependencies outside, brakes of our own, holds of people.
--
--   redrive_dependency   one row a name, shared by all workers: whether it is shut, since when, who looks next

create table redrive_dependency (
    name           text primary key,
    kind           text not null default 'dependency' check (kind in ('dependency', 'brake', 'hold')),
    state          text not null default 'closed' check (state in ('closed', 'open', 'half_open', 'degraded')),
    by_hand        integer not null default 0,
    failed_count   integer not null default 0,
    passed_count   integer not null default 0,
    counted_at     integer,
    opened_at      integer,
    opened_by      text,
    reason         text,
    openings       integer not null default 0,
    probe_at       integer,
    probe_event_id text,
    probe_until    integer,
    closed_at      integer,
    released_from  integer,
    released_count integer not null default 0
) without rowid;

-- The oldest first, and the names that anybody waits for without reading all who wait.
create index redrive_outbox_blocked on redrive_outbox (blocked_on, id) where status = 'blocked';
