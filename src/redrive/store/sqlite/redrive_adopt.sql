-- Adopt: give the members of a plan that a worker of version 15 has made their lines (a part of release on PostgreSQL).
update redrive_redrive_item as i
set line = length(o.target) || ':' || o.target || ':' || o.ordering_key, place = o.seq
from redrive_outbox o
where i.redrive_id = :id and i.state in ('ready', 'released') and i.line is null
  and o.id = i.event_id and o.ordering_key is not null
