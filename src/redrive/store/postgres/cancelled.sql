-- Cancelled: events that were cancelled while this session ran them, and whose handlers are not known to have ended.
select id, fence, cancelled_by, cancel_reason from redrive.outbox
where status = 'cancelled' and session_id = :session::uuid
limit 1000
