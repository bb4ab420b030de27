-- Behind: members of some lines that may not go, since a dead letter that is no member holds up their key before them.
-- The line of a key is read once, from its head to the first that is no member.
update redrive_redrive_item as i indexed by redrive_redrive_item_line
set state = 'ineligible', reason = 'behind a failed head of its ordering key'
from (
    select x.line, (
        select l.seq from redrive_key_line l
        where l.target = o.target and l.ordering_key = o.ordering_key and l.status = 'failed' and not exists (
            select 1 from redrive_redrive_item y where y.redrive_id = :id and y.event_id = l.id and y.state = 'ready')
        order by l.seq limit 1) as place
    from (select f.line, f.event_id, row_number() over (partition by f.line order by f.place) as n
          from redrive_redrive_item f indexed by redrive_redrive_item_line
          where f.redrive_id = :id and f.line > :after and f.line <= :until and f.line is not null
            and f.state in ('ready', 'released')) x
    join redrive_outbox o on o.id = x.event_id
    where x.n = 1
) head
where i.redrive_id = :id and i.line = head.line and i.line is not null and i.state in ('ready', 'released')
  and i.state = 'ready' and i.place > head.place
returning position
