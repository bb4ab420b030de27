-- Revision: which payload waits for a second person.
select event_id, cycle, payload::text as payload
from redrive.redrive_item where redrive_id = :id::uuid and position = 1 and payload is not null
