-- Counts: how many events stand in each status, by type. Reads the whole table: for small stores and the demo.
select type, status, count(*) as n from redrive.outbox where deleted_at is null group by type, status
