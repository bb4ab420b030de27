-- Promote: an event of this key has left the line or the flight; the first in line may go, if it waits for nothing else.
-- Differs from PostgreSQL: one key a statement; there a function does it, called by every statement that ends events.
update redrive_outbox set status = 'pending', due_at = :now
where seq = (select l.seq from redrive_key_line l where l.target = :target and l.ordering_key = :ordering_key
             order by l.seq limit 1)
  and status = 'blocked' and blocked_on is null
  and not exists (select 1 from redrive_key_busy f where f.target = :target and f.ordering_key = :ordering_key)
