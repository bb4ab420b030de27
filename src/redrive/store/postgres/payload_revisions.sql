-- Revisions: what the payload of an event was before it was edited, oldest first.
select revision, payload, replaced_by, reason, replaced_at from redrive.payload_revision where event_id = :id::uuid order by revision
