-- Reservations and schedules.
--
--   reservation  one row a resource: who holds it until when, and the token that tells a late holder from the current one
--   schedule     one row a schedule: what is published, how often, and when next
--
-- A reservation's row is never removed: its token goes on growing, so that none is ever given twice.

create table redrive_reservation (
    resource    text primary key,
    token       integer not null,
    owner       text not null,
    facts       text,
    taken_at    integer not null,
    renewed_at  integer not null,
    until       integer not null,
    released_at integer
) without rowid;

create table redrive_schedule (
    name           text primary key,
    type           text not null,
    payload        text not null,
    options        text not null,
    cron           text,
    every_seconds  real,
    offset_seconds real not null default 0,
    time_zone      text not null,
    catch_up       text not null check (catch_up in ('latest', 'all', 'skip')),
    next_at        integer,
    last_at        integer,
    event_count    integer not null default 0,
    missed_count   integer not null default 0,
    paused_at      integer,
    paused_by      text,
    digest         text not null,
    created_at     integer not null,
    changed_at     integer not null,
    changed_by     text not null,
    check ((cron is null) <> (every_seconds is null))
) without rowid;
create index redrive_schedule_next on redrive_schedule (next_at) where paused_at is null;

-- For your own SQL: `insert into redrive_guard (resource, token) values (…)` raises unless this token holds the resource
-- now. The insert takes the file's write lock, so nobody else can take the resource before your transaction ends.
-- Differs from PostgreSQL, where it is a function. Now is the later of the machine's clock and the file's time.
create view redrive_guard as select resource, token from redrive_reservation;

create trigger redrive_guard_check instead of insert on redrive_guard
begin
    select case
        when r.resource is null then raise(abort, 'redrive: nobody ever reserved this resource: take it first')
        when new.token is null or new.token > r.token
            then raise(abort, 'redrive: this token is not one of this resource: use the one that take answered')
        when new.token < r.token
            then raise(abort, 'redrive: this resource was taken over: this token may write nothing any more')
        when r.released_at is not null then raise(abort, 'redrive: this reservation was released: take it again')
        when r.until <= max((select highest from redrive_clock),
                            cast(strftime('%s', 'now') as integer) * 1000000
                            + cast(substr(strftime('%f', 'now'), 4) as integer) * 1000)
            then raise(abort, 'redrive: this reservation has run out: take it again, and renew it in time')
        end
    from (select 1) left join redrive_reservation r on r.resource = new.resource;
end;
