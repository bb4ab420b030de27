-- Expire: let others take attempts that have run longer than their timeout while the event loop of their worker is
-- blocked. Its heartbeat has a thread of its own and says so; the sweep does the rest.
-- Guard: only by its fence, and only while the event is in flight. A row that somebody else has locked is passed over: the
-- heartbeat must not wait for it.
update redrive.outbox o set lease_until = redrive.moment(:now::timestamptz)
where o.id = any(array(
    select x.id from redrive.outbox x
    where x.id = any(:ids::uuid[]) and x.status = 'in_flight' and x.lease_until is null
      and x.fence = (:fences::bigint[])[array_position(:ids::uuid[], x.id)]
    for update of x skip locked))
returning o.id
