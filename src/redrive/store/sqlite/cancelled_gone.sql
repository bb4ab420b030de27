-- Cancelled gone: events that were cancelled while a session ran them that has ended since; some, if there are many.
select o.id from redrive_outbox o indexed by redrive_outbox_cancelled
where o.status = 'cancelled' and o.session_id is not null
  and not exists (select 1 from redrive_session s where s.id = o.session_id and s.ended_at is null)
limit 500
