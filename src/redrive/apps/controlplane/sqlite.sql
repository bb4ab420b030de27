-- The control plane's own tables. Differs from PostgreSQL: a prefix instead of a schema.
create table if not exists controlplane_request (
    id text primary key,
    site text not null,
    home text not null,
    owner text not null,
    size text not null,
    volume_gb integer not null,
    image text not null,
    state text not null,
    step text,
    outcome text,
    reason text,
    error_class text,
    operation text,
    resource text,
    safe_to_retry boolean,
    cancelled_by text,
    address text,
    volume text,
    machine text,
    reduced boolean not null,
    version integer not null,
    asked_count integer not null,
    deadline_at text not null,
    created_at text not null,
    changed_at text not null,
    key text unique
);
create index if not exists controlplane_request_live on controlplane_request (state, changed_at)
    where state in ('FORWARDED', 'PROVISIONING', 'UNDOING');

-- What a service has made of a request. GONE is final: nothing is made of it any more.
create table if not exists controlplane_resource (
    kind text not null,
    request text not null,
    state text not null check (state in ('MAKING', 'ACTIVE', 'GONE')),
    owner text not null,
    volume_gb integer not null,
    name text,
    token integer not null,
    facts text not null,
    reduced boolean not null,
    primary key (kind, request)
);
create index if not exists controlplane_resource_name on controlplane_resource (kind, name);
create index if not exists controlplane_resource_owner on controlplane_resource (kind, owner) where state <> 'GONE';
create index if not exists controlplane_resource_making on controlplane_resource (kind, name) where state = 'MAKING';

-- Whose row is locked, of that owner nobody else takes anything: two orders cannot both be the last within a quota.
create table if not exists controlplane_owner (owner text primary key);

-- The pool. One request has an address, and one address a request.
create table if not exists controlplane_address (
    address text primary key,
    position integer not null unique,
    request text unique,
    token integer
);
create index if not exists controlplane_address_free on controlplane_address (position) where request is null
