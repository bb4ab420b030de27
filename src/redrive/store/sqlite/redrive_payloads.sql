-- Payloads: a page of the members that are ready and whose handler asks for a type.
select i.position, o.target, o.payload
from redrive_redrive_item i join redrive_outbox o on o.id = i.event_id
where i.redrive_id = :id and i.state = 'ready' and i.position > :after
  and o.target in (select value from json_each(:targets))
order by i.position limit :limit
