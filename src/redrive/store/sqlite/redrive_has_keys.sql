-- Has keys: whether a chunk of members needs a look at retry keys. Most need none, and it is dear.
select 1 from redrive_redrive_item i join redrive_outbox o on o.id = i.event_id
where i.redrive_id = :id and i.position > :after and o.retry_key is not null
limit 1
