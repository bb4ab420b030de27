-- Ours: whether a run still has the lease of its event. Another worker may have begun it anew.
select id from redrive_outbox where id = :id and fence = :fence and status = 'in_flight'
