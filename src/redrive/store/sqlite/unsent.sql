-- Unsent: what the routes have not sent yet, and since when the oldest of it waits.
select target, count(*) as n, min(created_at) as oldest_at from redrive_outbox
where status in ('pending', 'in_flight', 'blocked') and target >= 'relay:' and target < 'relay;'
group by target
