-- Behind: members of some lines that may not go, since a dead letter that is no member holds up their key before them.
-- The line of a key is read once, from its head to the first that is no member.
update redrive.redrive_item as i
set state = 'ineligible', reason = 'behind a failed head of its ordering key'
from (
    select x.line, l.created_at, l.id
    from (select distinct on (f.line) f.line, f.event_id from redrive.redrive_item f
          where f.redrive_id = :id::uuid and f.line > :after::text and f.line <= :until::text and f.line is not null
            and f.state in ('ready', 'released')
          order by f.line, f.place, f.event_id) x
    join redrive.outbox o on o.id = x.event_id
    cross join lateral (
        select l.created_at, l.id from redrive.key_line l
        where l.target = o.target and l.ordering_key = o.ordering_key and l.status = 'failed' and not exists (
            select from redrive.redrive_item y where y.redrive_id = :id::uuid and y.event_id = l.id and y.state = 'ready')
        order by l.created_at, l.id limit 1) l
) head
where i.redrive_id = :id::uuid and i.line = head.line and i.line is not null and i.state = 'ready'
  and (i.place, i.event_id) > (head.created_at, head.id)
returning i.position
