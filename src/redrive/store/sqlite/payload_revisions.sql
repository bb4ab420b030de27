-- Revisions: what the payload of an event was before it was edited, oldest first.
select revision, payload, replaced_by, reason, replaced_at from redrive_payload_revision where event_id = :id order by revision
