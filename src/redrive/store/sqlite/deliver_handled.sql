-- Deliver handled: end a dead letter whose effect is there. Its handler committed the key and failed afterwards, or another
-- event with the key was faster. Guard: not while its compensations have not ended.
-- Differs from PostgreSQL: the compensation is named, for the trigger that publishes the next one (see 0004_steps.sql).
update redrive_outbox set status = 'delivered', ended_at = :now, compensation = compensation
where id = :id and status = 'failed' and deleted_at is null and cycle = coalesce(:cycle, cycle)
  and coalesce(compensation, '') not in ('pending', 'failed')
  and exists (select 1 from redrive_event_handled h
              where h.target = redrive_outbox.target and h.idempotency_key = redrive_outbox.idempotency_key)
returning id, source, target, ordering_key, fingerprint, batch_id, cycle, generation
