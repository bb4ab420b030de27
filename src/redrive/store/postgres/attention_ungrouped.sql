-- Attention, ungrouped: dead letters of no group (imported ones may have none), counted up to 10,001.
select count(*) as n, min(x.ended_at) as since from (
    select ended_at from redrive.outbox
    where status = 'failed' and fingerprint is null and deleted_at is null limit 10001) x
