-- Revise: keep the payload as it was; the edited one takes its place in the same transaction.
insert into redrive_payload_revision (event_id, revision, payload, replaced_by, reason, replaced_at)
select o.id, (select count(*) from redrive_payload_revision v where v.event_id = o.id) + 1, o.payload, :by, :reason, :now
from redrive_outbox o where o.id = :id and o.status = 'failed' and o.deleted_at is null
returning revision
