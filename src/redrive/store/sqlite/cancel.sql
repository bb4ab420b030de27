-- Cancel: end an event that has not ended. A worker that is running it finds its lease gone and can settle nothing; it
-- learns by its session's id, which stays on the row until it has heard (`told`).
-- Differs from PostgreSQL: one row a statement; the trail is written beside it in the same transaction.
update redrive_outbox
set status = 'cancelled', ended_at = :now, cancelled_by = :by, cancel_reason = :reason,
    session_id = case when status = 'in_flight' then session_id end
where id = :id and status in ('pending', 'in_flight', 'blocked')
