-- Tables of the adjudication system. A statement ends with a semicolon before an empty line.
-- Differs from PostgreSQL: a prefix for the schema, instants as ISO 8601 text in UTC.

create table adjudication_receipt (
    transaction_receipt_id text primary key,
    buyer text not null,
    seller text not null,
    amount_minor integer not null check (amount_minor > 0),
    currency text not null,
    escrow_adjudication text check (escrow_adjudication in ('release', 'refund', 'split')),
    seller_minor integer check (seller_minor between 0 and amount_minor),
    adjudicated_by text,
    adjudicated_at text,
    settlement_progression_status text not null default 'in-escrow'
        check (settlement_progression_status in ('in-escrow', 'execution-pending', 'executed', 'dispute-ready')),
    settlement_progression_reason_code text,
    settlement_progression_reason text,
    dispute_lifecycle_status text not null default 'open'
        check (dispute_lifecycle_status in ('open', 'adjudicated', 're-escalated', 'closed')),
    execution_event_id text,
    dispatch_reference text,
    submitted_at text not null,
    executed_at text
);

create index adjudication_receipt_status on adjudication_receipt (settlement_progression_status, transaction_receipt_id);

create table adjudication_trail (
    seq integer primary key autoincrement,
    transaction_receipt_id text not null references adjudication_receipt,
    source text not null default 'post_adjudication_retry' check (source = 'post_adjudication_retry'),
    kind text not null check (kind in ('retry-scheduled', 'dead-lettered')),
    event_id text not null,
    attempt integer not null,
    outcome text not null,
    next_retry_at text,
    dispatch_reference text,
    dead_lettered_at text,
    reason text,
    recorded_at text not null,
    check ((kind = 'retry-scheduled') = (next_retry_at is not null)),
    check ((kind = 'dead-lettered') = (dead_lettered_at is not null and reason is not null))
);

create index adjudication_trail_receipt on adjudication_trail (transaction_receipt_id, seq);

create table adjudication_entry (
    transaction_receipt_id text not null references adjudication_receipt,
    party text not null check (party in ('buyer', 'seller')),
    amount_minor integer not null check (amount_minor > 0),
    booked_at text not null,
    primary key (transaction_receipt_id, party)
);

create trigger adjudication_trail_no_update before update on adjudication_trail
begin
    select raise(abort, 'the trail of adjudications is append-only');
end;

create trigger adjudication_trail_no_delete before delete on adjudication_trail
begin
    select raise(abort, 'the trail of adjudications is append-only');
end;

-- `insert or replace` deletes without asking the trigger above.
create trigger adjudication_trail_no_replace before insert on adjudication_trail
when exists (select 1 from adjudication_trail where seq = new.seq)
begin
    select raise(abort, 'the trail of adjudications is append-only');
end;

create trigger adjudication_entry_no_update before update on adjudication_entry
begin
    select raise(abort, 'what was booked stays booked');
end;

create trigger adjudication_entry_no_delete before delete on adjudication_entry
begin
    select raise(abort, 'what was booked stays booked');
end;

create trigger adjudication_receipt_stays before update on adjudication_receipt
when old.escrow_adjudication is not null
    and (new.escrow_adjudication is not old.escrow_adjudication or new.seller_minor is not old.seller_minor)
begin
    select raise(abort, 'an adjudication stays recorded');
end;

create trigger adjudication_receipt_no_delete before delete on adjudication_receipt
begin
    select raise(abort, 'a receipt stays recorded');
end;
