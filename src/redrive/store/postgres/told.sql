-- Told: the handlers of these cancelled events have ended or were given up; the next of their keys may go.
-- One that somebody else has locked is told again.
update redrive.outbox set session_id = null
where id = any(array(
    select x.id from redrive.outbox x where x.id = any(:ids::uuid[]) and x.status = 'cancelled' and x.session_id is not null
    for update of x skip locked))
returning target, ordering_key
