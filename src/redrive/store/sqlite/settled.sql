-- Settled: what a hook is told of an event that was settled in this transaction.
select attempts, due_at, ended_at from redrive_outbox where id = :id
