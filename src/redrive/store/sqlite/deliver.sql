-- Deliver: the attempt succeeded. Guard: only by its fence, and only while the event is in flight.
update redrive_outbox set status = 'delivered', ended_at = :now
where id = :id and fence = :fence and status = 'in_flight'
