-- Digest: a chunk of members in order, as the text that is hashed.
select group_concat(event_id || ':' || cycle) as members from (
    select event_id, cycle from redrive_redrive_item where redrive_id = :id and position > :after order by position)
