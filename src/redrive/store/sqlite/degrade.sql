-- Degrade: note on an event that it is run in a reduced mode. Guard: only by its fence, while it is in flight.
update redrive_outbox set degraded = 1 where id = :id and fence = :fence and status = 'in_flight'
returning id
