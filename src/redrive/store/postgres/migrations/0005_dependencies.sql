-- What events wait for: dependencies outside, brakes of our own, holds of people.
--
--   dependency   one row a name, shared by all workers: whether it is shut, since when, who looks next

create table redrive.dependency (
    name           text primary key,
    kind           text not null default 'dependency' check (kind in ('dependency', 'brake', 'hold')),
    state          text not null default 'closed' check (state in ('closed', 'open', 'half_open', 'degraded')),
    by_hand        boolean not null default false,
    failed_count   bigint not null default 0,
    passed_count   bigint not null default 0,
    counted_at     timestamptz,
    opened_at      timestamptz,
    opened_by      text,
    reason         text,
    openings       int not null default 0,
    probe_at       timestamptz,
    probe_event_id uuid,
    probe_until    timestamptz,
    closed_at      timestamptz,
    released_from  timestamptz,
    released_count bigint not null default 0
) with (fillfactor = 50);

-- The oldest first, and the names that anybody waits for without reading all who wait.
create index outbox_blocked on redrive.outbox (blocked_on, id) where status = 'blocked';
