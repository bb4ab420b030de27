-- Long work: attempts with a time limit, and events that are called off while they run.
-- Both indexes are all but empty: rows stand in them only while somebody has to be told.

create index redrive_outbox_expired on redrive_outbox (lease_until) where status = 'in_flight' and lease_until is not null;
create index redrive_outbox_cancelled on redrive_outbox (session_id)
    where status = 'cancelled' and session_id is not null;
