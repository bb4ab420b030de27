-- Attention, ungrouped: dead letters of no group (imported ones may have none), counted up to 10,001.
select count(*) as n, min(ended_at) as since from (
    select ended_at from redrive_outbox indexed by redrive_outbox_ungrouped
    where status = 'failed' and fingerprint is null and deleted_at is null limit 10001)
