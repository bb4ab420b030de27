-- Unnoted: redrives that released one of the next members before and have not written down yet how that ended.
select distinct i.redrive_id from redrive_redrive_item i
where i.state = 'released' and i.event_id in (
    select n.event_id from redrive_redrive_item n indexed by redrive_redrive_item_free
    where n.redrive_id = :id and n.state = 'ready' and n.waits = 0 order by n.position limit :limit)
