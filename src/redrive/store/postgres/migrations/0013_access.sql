-- Access: who may come in over HTTP, and what they were answered.
--
--   operator_token  what a person, a program or an agent shows; only its hash is kept
--   sign_in         a browser that has shown a token; only the hash of its cookie is kept
--   answer          what a call with an idempotency key was answered, for a day

create table redrive.operator_token (
    id           uuid primary key,
    name         text not null,
    role         text not null check (role in ('viewer', 'publisher', 'operator', 'admin', 'agent')),
    hash         text not null unique,
    created_at   timestamptz not null,
    created_by   text not null,
    expires_at   timestamptz not null,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    revoked_by   text
);

create table redrive.sign_in (
    hash       text primary key,
    token_id   uuid not null,
    began_at   timestamptz not null,
    expires_at timestamptz not null
);
create index sign_in_expires on redrive.sign_in (expires_at);

create table redrive.answer (
    caller     text not null,
    key        text not null,
    request    text not null,
    status     int,
    headers    text,
    body       text,
    begun_at   timestamptz not null,
    expires_at timestamptz not null,
    primary key (caller, key)
);
create index answer_expires on redrive.answer (expires_at);
