-- Payloads: a page of the members that are ready and whose handler asks for a type.
select i.position, o.target, o.payload
from redrive.redrive_item i join redrive.outbox o on o.id = i.event_id
where i.redrive_id = :id::uuid and i.state = 'ready' and i.position > :after::bigint and o.target = any(:targets::text[])
order by i.position limit :limit::int
