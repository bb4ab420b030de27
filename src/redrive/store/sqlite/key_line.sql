-- Key line: the events of a key as they stand in line; first what keeps it: in flight, or cancelled with its handler running.
select x.id, x.target, x.type, x.status, x.blocked_on, x.created_at, x.due_at
from redrive_outbox x
where x.seq in (
    select f.seq from redrive_key_busy f where f.target = :target and f.ordering_key = :ordering_key
    union all
    select * from (select l.seq from redrive_key_line l where l.target = :target and l.ordering_key = :ordering_key
                   order by l.seq limit :limit))
order by x.status not in ('in_flight', 'cancelled'), x.seq limit :limit
