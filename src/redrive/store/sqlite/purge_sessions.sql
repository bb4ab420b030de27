-- Purge sessions: forget workers that left long ago. Guard: not while an event still names them as its holder.
delete from redrive_session where ended_at < :before and not exists (
    select 1 from redrive_outbox o where o.status = 'in_flight' and o.session_id = redrive_session.id)
