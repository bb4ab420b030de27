-- Ours: whether a run still has the lease of its event. Another worker may have begun it anew.
select id from redrive.outbox where id = :id::uuid and fence = :fence::bigint and status = 'in_flight'
