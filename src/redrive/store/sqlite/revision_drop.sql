-- Revision: it has gone or was dropped; the event has the payload now, or nobody shall have it.
update redrive_redrive_item set payload = null where redrive_id = :id and payload is not null
