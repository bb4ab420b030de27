-- Expire: let others take attempts that have run longer than their timeout while the event loop of their worker is
-- blocked. Its heartbeat has a thread of its own and says so; the sweep does the rest.
-- Guard: only by its fence, and only while the event is in flight.
-- Differs from PostgreSQL: one row a statement.
update redrive_outbox set lease_until = :now
where id = :id and fence = :fence and status = 'in_flight' and lease_until is null
