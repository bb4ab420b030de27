-- Keyed: of a chunk of members, which may not go because of another with the same key, and which has to wait for another
-- to end: of several with one retry key only the first goes, and an ordering key is brought in its order.
update redrive_redrive_item as i
set state = case when k.why is null then i.state else 'ineligible' end, reason = k.why, follows = k.follows
from (
    select p.position, p.why,
           case when p.ordering_key is not null and p.why is null
                then lag(p.position) over (partition by p.target, p.ordering_key, p.why is null order by p.position) end as follows
    from (
        select x.position, o.target, o.ordering_key,
               case when x.state <> 'ready' then x.reason
                    when o.retry_key is not null
                         and row_number() over (partition by o.target, o.retry_key, x.state order by x.position) > 1
                        then 'second dead letter with its retry key'
                    when o.ordering_key is not null and exists (
                        select 1 from redrive_key_line l
                        where l.target = o.target and l.ordering_key = o.ordering_key and l.status = 'failed'
                          and l.seq < o.seq and not exists (
                              select 1 from redrive_redrive_item y
                              where y.redrive_id = :id and y.event_id = l.id and y.state = 'ready'))
                        then 'behind a failed head of its ordering key' end as why
        from redrive_redrive_item x join redrive_outbox o on o.id = x.event_id
        where x.redrive_id = :id and x.position > :after and (o.retry_key is not null or o.ordering_key is not null)
    ) p
) k
where i.redrive_id = :id and i.position = k.position and (k.why is not i.reason or k.follows is not null)
