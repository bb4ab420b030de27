-- Revision, its member: the dead letter, and the payload with which it is to go.
insert into redrive_redrive_item (redrive_id, position, event_id, cycle, fingerprint, failed_at, state, payload)
select :id, 1, o.id, o.cycle, o.fingerprint, o.ended_at, 'ready', :payload from redrive_outbox o where o.id = :event_id
returning fingerprint
