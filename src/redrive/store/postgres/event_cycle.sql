-- Cycle: in which cycle an event is; asked by the transaction that has just replayed it.
select cycle from redrive.outbox where id = :id::uuid
