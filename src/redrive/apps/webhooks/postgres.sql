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
