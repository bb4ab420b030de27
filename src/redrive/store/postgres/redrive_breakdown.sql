-- Breakdown: what the members are, the largest parts first.
select o.type, o.target, o.error_class, i.fingerprint, count(*) as n, min(o.ended_at) as oldest, max(o.ended_at) as newest
from redrive.redrive_item i join redrive.outbox o on o.id = i.event_id
where i.redrive_id = :id::uuid
group by o.type, o.target, o.error_class, i.fingerprint
order by n desc
limit 50
