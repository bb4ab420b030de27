-- Count: how many events of a set have not ended, and the instant up to which it is meant.
select count(*) as n, coalesce(:now::timestamptz, clock_timestamp()) as now from redrive.outbox
where status in ('pending', 'in_flight', 'blocked') {where}
