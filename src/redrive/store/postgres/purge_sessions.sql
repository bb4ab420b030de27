-- Purge sessions: forget workers that left long ago. Guard: not while an event still names them as its holder.
delete from redrive.session where id = any(array(
    select s.id from redrive.session s where s.ended_at < :before::timestamptz and not exists (
        select 1 from redrive.outbox o where o.status = 'in_flight' and o.session_id = s.id)
    for update of s skip locked))
