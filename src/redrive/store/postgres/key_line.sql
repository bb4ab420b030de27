-- Key line: the events of a key as they stand in line; first what keeps it: in flight, or cancelled with its handler running.
select x.id, x.target, x.type, x.status, x.blocked_on, x.created_at, x.due_at
from redrive.outbox x
where x.id = any(array(
        select f.id from redrive.key_busy f where f.target = :target::text and f.ordering_key = :ordering_key::text))
   or x.id = any(array(
        select l.id from redrive.key_line l where l.target = :target::text and l.ordering_key = :ordering_key::text
        order by l.created_at, l.id limit :limit))
order by x.status not in ('in_flight', 'cancelled'), x.created_at, x.id limit :limit
