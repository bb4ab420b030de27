-- Cancel: end an event that has not ended. A worker that is running it finds its lease gone and can settle nothing.
update redrive_outbox set status = 'cancelled', ended_at = :now, cancelled_by = :by, cancel_reason = :reason
where id = :id and status in ('pending', 'in_flight', 'blocked')
