-- Purge handled: forget idempotency keys that were handled long ago.
-- Guard: not while an event with that key could still run or be replayed. The index of shared keys leaves out events whose
-- key is their own id: those are found by it.
delete from redrive.event_handled where (target, idempotency_key) in (
    select h.target, h.idempotency_key from redrive.event_handled h
    where h.handled_at < :before::timestamptz
      and not exists (
          select from redrive.outbox o
          where o.target = h.target and o.idempotency_key = h.idempotency_key and o.idempotency_key <> o.id::text
            and o.status in ('pending', 'in_flight', 'blocked', 'failed') offset 0)
      and not exists (
          select from redrive.outbox o
          where o.id = case when h.idempotency_key ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$'
                            then h.idempotency_key::uuid end
            and o.target = h.target and o.idempotency_key = h.idempotency_key
            and o.status in ('pending', 'in_flight', 'blocked', 'failed') offset 0)
    order by h.handled_at limit :limit)
