-- Keyed: of several members of a chunk with one retry key only the first in order goes.
update redrive.redrive_item as i set state = 'ineligible', reason = 'second dead letter with its retry key'
from (
    select x.position, row_number() over (partition by o.target, o.retry_key order by o.created_at, o.id) as n
    from redrive.redrive_item x join redrive.outbox o on o.id = x.event_id
    where x.redrive_id = :id::uuid and x.position > :after::bigint and x.state = 'ready' and o.retry_key is not null
) k
where i.redrive_id = :id::uuid and i.position = k.position and k.n > 1
