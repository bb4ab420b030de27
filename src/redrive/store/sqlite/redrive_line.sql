-- Line: put the members of some lines in order. Of each line the first may go, the others wait.
update redrive_redrive_item as i set waits = i.state = 'ready', follows = k.follows
from (
    select x.position, lag(x.position) over (partition by x.line order by x.place) as follows
    from redrive_redrive_item x indexed by redrive_redrive_item_line
    where x.redrive_id = :id and x.line > :after and (:until is null or x.line <= :until) and x.line is not null
      and x.state in ('ready', 'released')
) k
where i.redrive_id = :id and i.position = k.position and k.follows is not null
