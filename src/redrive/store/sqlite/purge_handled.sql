-- Purge handled: forget idempotency keys that were handled long ago.
-- Guard: not while an event with that key could still run or be replayed. The index of shared keys leaves out events whose
-- key is their own id: those are found by it.
delete from redrive_event_handled where (target, idempotency_key) in (
    select h.target, h.idempotency_key from redrive_event_handled h
    where h.handled_at < :before
      and not exists (
          select 1 from redrive_outbox o
          where o.target = h.target and o.idempotency_key = h.idempotency_key and o.idempotency_key <> o.id
            and o.status in ('pending', 'in_flight', 'blocked', 'failed'))
      and not exists (
          select 1 from redrive_outbox o
          where o.id = h.idempotency_key and o.target = h.target and o.idempotency_key = h.idempotency_key
            and o.status in ('pending', 'in_flight', 'blocked', 'failed'))
    order by h.handled_at limit :limit)
