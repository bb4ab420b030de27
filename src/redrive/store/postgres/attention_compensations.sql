-- Attention, compensations: failed ones that were discarded. What they should have undone is not undone, and neither are
-- the steps before it.
select c.id, c.target, c.deleted_at as since, p.id as event_id, p.target as event_target
from redrive.outbox p
join redrive.step s on s.event_id = p.id and s.state = 'compensating'
join redrive.outbox c on c.id = s.compensation_id
where p.compensation = 'failed' and c.status = 'failed' and c.deleted_at is not null
order by p.id limit :limit
