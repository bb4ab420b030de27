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
