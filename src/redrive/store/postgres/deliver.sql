-- Deliver: the attempt succeeded, in the handler's own transaction.
-- Guard: only by its fence, and only while the event is in flight.
update redrive.outbox set status = 'delivered', ended_at = coalesce(:now::timestamptz, clock_timestamp())
where id = :id::uuid and fence = :fence::bigint and status = 'in_flight'
returning id
