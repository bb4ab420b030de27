-- Which messages have come: one that comes again is answered, and not stored a second time.
create table if not exists webhooks_seen (
    source text not null,
    message_id text not null,
    seen_at integer not null,
    primary key (source, message_id)
) without rowid;

create index if not exists webhooks_seen_age on webhooks_seen (seen_at);

-- What was not taken: a row for each source and reason, with a count and the latest example.
create table if not exists webhooks_refused (
    source text not null,
    reason text not null,
    refused_count integer not null,
    first_at text not null,
    last_at text not null,
    last_detail text not null,
    last_peer text not null,
    primary key (source, reason)
) without rowid;

-- The messages with their states, in plain words: pending, processing, delivered, failed. Instants are ISO 8601 in UTC.
drop view if exists events;

create view events as
select
    id, target, source, subject as message_id, payload, headers,
    case when status = 'in_flight' then 'processing' when status = 'blocked' then 'pending' else status end as status,
    attempts, last_error,
    case when attempts > 0 and status in ('pending', 'blocked') then strftime('%Y-%m-%dT%H:%M:%S', due_at / 1000000, 'unixepoch') || printf('.%06d+00:00', due_at % 1000000) end as retry_after,
    strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch') || printf('.%06d+00:00', created_at % 1000000) as created_at
from redrive_outbox
where type like 'webhook.%' and status <> 'cancelled';
