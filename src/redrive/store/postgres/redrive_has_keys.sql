-- Has keys: whether a chunk of members needs a look at retry keys. Most need none, and it is dear.
select 1 from redrive.redrive_item i join redrive.outbox o on o.id = i.event_id
where i.redrive_id = :id::uuid and i.position > :after::bigint and o.retry_key is not null
limit 1
