-- Digest: the members in order, as the text that is hashed.
select group_concat(event_id || ':' || cycle) from (
    select event_id, cycle from redrive_redrive_item where redrive_id = :id order by position)
