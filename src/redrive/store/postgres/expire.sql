-- Expire: let others take attempts that have run longer than their timeout while the event loop of their worker is
-- blocked. Its heartbeat has a thread of its own and says so; the sweep does the rest.
-- Guard: only by its fence, and only while the event is in flight.
update redrive.outbox o set lease_until = redrive.moment(:now::timestamptz)
where o.id = any(:ids::uuid[]) and o.status = 'in_flight' and o.lease_until is null
  and o.fence = (:fences::bigint[])[array_position(:ids::uuid[], o.id)]
returning o.id
