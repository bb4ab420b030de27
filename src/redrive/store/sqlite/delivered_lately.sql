-- Delivered lately: of the events that ended last, those that a target has delivered.
select {columns}
from (select * from redrive_outbox where status in ('delivered', 'cancelled') order by ended_at desc limit :walked) as ended
where status = 'delivered' and target = :target
limit :limit
