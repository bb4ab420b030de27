-- Cancelled: what was called off while this session ran it, and its worker has not heard of yet.
select id, fence, cancelled_by, cancel_reason from redrive_outbox indexed by redrive_outbox_cancelled
where status = 'cancelled' and session_id = :session
limit 1000
