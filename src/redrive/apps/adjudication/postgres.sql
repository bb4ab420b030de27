-- Tables of the adjudication system. A statement ends with a semicolon before an empty line.
-- Differs from SQLite: a schema of its own, instants with time zone.

create schema if not exists adjudication;

create table adjudication.receipt (
    transaction_receipt_id text primary key,
    buyer text not null,
    seller text not null,
    amount_minor bigint not null check (amount_minor > 0),
    currency text not null,
    escrow_adjudication text check (escrow_adjudication in ('release', 'refund', 'split')),
    seller_minor bigint check (seller_minor between 0 and amount_minor),
    adjudicated_by text,
    adjudicated_at timestamptz,
    settlement_progression_status text not null default 'in-escrow'
        check (settlement_progression_status in ('in-escrow', 'execution-pending', 'executed', 'dispute-ready')),
    settlement_progression_reason_code text,
    settlement_progression_reason text,
    dispute_lifecycle_status text not null default 'open'
        check (dispute_lifecycle_status in ('open', 'adjudicated', 're-escalated', 'closed')),
    execution_event_id text,
    dispatch_reference text,
    submitted_at timestamptz not null,
    executed_at timestamptz
);

create index receipt_status on adjudication.receipt (settlement_progression_status, transaction_receipt_id);

create table adjudication.trail (
    seq bigint generated always as identity primary key,
    transaction_receipt_id text not null references adjudication.receipt,
    source text not null default 'post_adjudication_retry' check (source = 'post_adjudication_retry'),
    kind text not null check (kind in ('retry-scheduled', 'dead-lettered')),
    event_id text not null,
    attempt integer not null,
    outcome text not null,
    next_retry_at timestamptz,
    dispatch_reference text,
    dead_lettered_at timestamptz,
    reason text,
    recorded_at timestamptz not null,
    check ((kind = 'retry-scheduled') = (next_retry_at is not null)),
    check ((kind = 'dead-lettered') = (dead_lettered_at is not null and reason is not null))
);

create index trail_receipt on adjudication.trail (transaction_receipt_id, seq);

create table adjudication.entry (
    transaction_receipt_id text not null references adjudication.receipt,
    party text not null check (party in ('buyer', 'seller')),
    amount_minor bigint not null check (amount_minor > 0),
    booked_at timestamptz not null,
    primary key (transaction_receipt_id, party)
);

create function adjudication.refuse() returns trigger language plpgsql as $$
begin
    raise exception '%', tg_argv[0] using errcode = 'restrict_violation';
end
$$;

create trigger trail_append_only before update or delete on adjudication.trail
    for each row execute function adjudication.refuse('the trail of adjudications is append-only');

create trigger trail_no_truncate before truncate on adjudication.trail
    for each statement execute function adjudication.refuse('the trail of adjudications is append-only');

create trigger entry_append_only before update or delete on adjudication.entry
    for each row execute function adjudication.refuse('what was booked stays booked');

create trigger entry_no_truncate before truncate on adjudication.entry
    for each statement execute function adjudication.refuse('what was booked stays booked');

create trigger receipt_stays before update on adjudication.receipt
    for each row
    when (old.escrow_adjudication is not null
          and (new.escrow_adjudication is distinct from old.escrow_adjudication
               or new.seller_minor is distinct from old.seller_minor))
    execute function adjudication.refuse('an adjudication stays recorded');

create trigger receipt_no_delete before delete on adjudication.receipt
    for each row execute function adjudication.refuse('a receipt stays recorded');
