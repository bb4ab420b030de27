-- Count: how many events of a set have not ended, and the instant up to which it is meant.
select count(*) as n, :now as now from redrive_outbox
where status in ('pending', 'in_flight', 'blocked') {where}
