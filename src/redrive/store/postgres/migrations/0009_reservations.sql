-- Reservations and schedules.
--
--   reservation  one row a resource: who holds it until when, and the token that tells a late holder from the current one
--   schedule     one row a schedule: what is published, how often, and when next
--
-- A reservation's row is never removed: its token goes on growing, so that none is ever given twice.

create table redrive.reservation (
    resource    text primary key,
    token       bigint not null,
    owner       text not null,
    facts       json,
    taken_at    timestamptz not null,
    renewed_at  timestamptz not null,
    until       timestamptz not null,
    released_at timestamptz
) with (fillfactor = 50);

create table redrive.schedule (
    name           text primary key,
    type           text not null,
    payload        json not null,
    options        json not null,
    cron           text,
    every_seconds  double precision,
    offset_seconds double precision not null default 0,
    time_zone      text not null,
    catch_up       text not null check (catch_up in ('latest', 'all', 'skip')),
    next_at        timestamptz,
    last_at        timestamptz,
    event_count    bigint not null default 0,
    missed_count   bigint not null default 0,
    paused_at      timestamptz,
    paused_by      text,
    digest         text not null,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,
    changed_by     text not null,
    check ((cron is null) <> (every_seconds is null))
) with (fillfactor = 50);
create index schedule_next on redrive.schedule (next_at) where paused_at is null;

-- For your own SQL: raises unless this token holds the resource now, and keeps it so until your transaction ends.
-- `for key share` is what a take has to wait for, and a renewal has not: whoever holds it may renew it meanwhile.
create function redrive.guard(p_resource text, p_token bigint) returns boolean language plpgsql as $$
declare
    r     redrive.reservation%rowtype;
    v_now timestamptz;
begin
    select * into r from redrive.reservation where resource = p_resource for key share;
    v_now := clock_timestamp();
    if r.resource is null then
        raise exception 'nobody ever reserved %: take it first', quote_literal(p_resource) using errcode = 'RD409';
    elsif p_token is null or p_token > r.token then
        raise exception 'token % is not one of %: its latest is %', coalesce(p_token::text, 'null'),
            quote_literal(p_resource), r.token using errcode = 'RD409';
    elsif p_token < r.token then
        raise exception '% was taken over with token % by % at %: token % may write nothing any more',
            quote_literal(p_resource), r.token, r.owner, r.taken_at, p_token using errcode = 'RD409';
    elsif r.released_at is not null then
        raise exception '% was released at %: take it again', quote_literal(p_resource), r.released_at
            using errcode = 'RD409';
    elsif r.until <= v_now then
        raise exception '% ran out at %: take it again, and renew it in time', quote_literal(p_resource), r.until
            using errcode = 'RD409';
    end if;
    return true;
end $$;
