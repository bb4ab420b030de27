-- Keyed: of several members of a chunk with one retry key only the first in order goes.
update redrive_redrive_item as i set state = 'ineligible', reason = 'second dead letter with its retry key'
from (
    select x.position, row_number() over (partition by o.target, o.retry_key order by o.seq) as n
    from redrive_redrive_item x join redrive_outbox o on o.id = x.event_id
    where x.redrive_id = :id and x.position > :after and x.state = 'ready' and o.retry_key is not null
) k
where i.redrive_id = :id and i.position = k.position and k.n > 1
