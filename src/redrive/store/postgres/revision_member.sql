-- Revision, its member: the dead letter, and the payload with which it is to go.
insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, failed_at, state, payload)
select :id::uuid, 1, o.id, o.cycle, o.fingerprint, o.ended_at, 'ready', (:payload::text)::json
from redrive.outbox o where o.id = :event_id::uuid
returning fingerprint
