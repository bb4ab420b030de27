-- Put back: return a lease whose attempt was not made (a stopping worker, a target unknown here). Spends no attempt.
-- Guard: only by its fence, and only while the event is in flight.
update redrive_outbox
set status = 'pending', attempts = attempts - 1, due_at = :now + :delay
where id = :id and fence = :fence and status = 'in_flight'
returning id
