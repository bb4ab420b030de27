create schema if not exists webhooks;

-- Which messages have come: one that comes again is answered, and not stored a second time.
create table if not exists webhooks.seen (
    source text not null,
    message_id text not null,
    seen_at bigint not null,
    primary key (source, message_id)
);

create index if not exists seen_age on webhooks.seen (seen_at);

-- What was not taken: a row for each source and reason, with a count and the latest example.
create table if not exists webhooks.refused (
    source text not null,
    reason text not null,
    refused_count bigint not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    last_detail text not null,
    last_peer text not null,
    primary key (source, reason)
);

-- The messages with their states, in plain words: pending, processing, delivered, failed. Instants are ISO 8601 in UTC.
create or replace view webhooks.events as
select
    id, target, source, subject as message_id, payload, headers,
    case when status = 'in_flight' then 'processing' when status = 'blocked' then 'pending' else status end as status,
    attempts, last_error,
    case when attempts > 0 and status in ('pending', 'blocked') then to_char(due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') end as retry_after,
    to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') as created_at
from redrive.outbox
where type like 'webhook.%' and status <> 'cancelled';
