-- Degrade: note on an event that it is run in a reduced mode. Guard: only by its fence, while it is in flight.
update redrive.outbox set degraded = true
where id = :id::uuid and fence = :fence::bigint and status = 'in_flight'
returning id
