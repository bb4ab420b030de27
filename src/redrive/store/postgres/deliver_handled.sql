-- Deliver handled: end a dead letter whose effect is there. Its handler committed the key and failed afterwards, or another
-- event with the key was faster. Guard: not while its compensations have not ended.
update redrive.outbox o set status = 'delivered', ended_at = coalesce(:now::timestamptz, clock_timestamp())
where o.id = :id::uuid and o.status = 'failed' and o.deleted_at is null and o.cycle = coalesce(:cycle::int, o.cycle)
  and coalesce(o.compensation, '') not in ('pending', 'failed')
  and exists (select from redrive.event_handled h where h.target = o.target and h.idempotency_key = o.idempotency_key)
returning o.id, o.source, o.target, o.ordering_key, o.fingerprint, o.batch_id, o.cycle, o.generation
