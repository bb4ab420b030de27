-- Access: who may come in over HTTP, and what they were answered.
--
--   redrive_operator_token  what a person, a program or an agent shows; only its hash is kept
--   redrive_sign_in         a browser that has shown a token; only the hash of its cookie is kept
--   redrive_answer          what a call with an idempotency key was answered, for a day

create table redrive_operator_token (
    id           text primary key,
    name         text not null,
    role         text not null check (role in ('viewer', 'publisher', 'operator', 'admin', 'agent')),
    hash         text not null unique,
    created_at   integer not null,
    created_by   text not null,
    expires_at   integer not null,
    last_used_at integer,
    revoked_at   integer,
    revoked_by   text
) without rowid;

create table redrive_sign_in (
    hash       text primary key,
    token_id   text not null,
    began_at   integer not null,
    expires_at integer not null
) without rowid;
create index redrive_sign_in_expires on redrive_sign_in (expires_at);

create table redrive_answer (
    caller     text not null,
    key        text not null,
    request    text not null,
    status     integer,
    headers    text,
    body       text,
    begun_at   integer not null,
    expires_at integer not null,
    primary key (caller, key)
) without rowid;
create index redrive_answer_expires on redrive_answer (expires_at);
