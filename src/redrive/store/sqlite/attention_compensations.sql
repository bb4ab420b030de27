-- Attention, compensations: failed ones that were discarded. What they should have undone is not undone, and neither are
-- the steps before it.
-- Differs from PostgreSQL: `cross join` and `+`, or SQLite would read all dead letters.
select c.id, c.target, c.deleted_at as since, p.id as event_id, p.target as event_target
from redrive_outbox p indexed by redrive_outbox_compensation_failed
cross join redrive_step s on s.event_id = p.id and s.state = 'compensating'
cross join redrive_outbox c on c.id = s.compensation_id
where p.compensation = 'failed' and +c.status = 'failed' and c.deleted_at is not null
order by p.id limit :limit
