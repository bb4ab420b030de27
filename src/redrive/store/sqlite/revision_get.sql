-- Revision: which payload waits for a second person.
select event_id, cycle, payload from redrive_redrive_item where redrive_id = :id and position = 1 and payload is not null
