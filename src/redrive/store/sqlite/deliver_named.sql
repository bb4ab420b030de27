-- Deliver, and name the compensation: like deliver, for a compensation and for what a handler's own transaction ends.
-- Naming the column lets the trigger see it that publishes the next compensation (see 0004_steps.sql).
update redrive_outbox set status = 'delivered', ended_at = :now, compensation = compensation
where id = :id and fence = :fence and status = 'in_flight'
