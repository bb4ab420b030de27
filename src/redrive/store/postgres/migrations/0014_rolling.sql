-- Rolling: old code and new code on one database. What a migration needs of the code that works on it: the number of the
-- last migration which that code must know. One that only adds needs no more than the one before it.

alter table redrive.schema_version add column needs int not null default 14;

-- Retention of dead letters finds the oldest of them without a look at the others. Its condition keeps it for those who ask
-- for a time: for any other list of dead letters it would be the wrong order.
create index outbox_failed_at on redrive.outbox (ended_at) where status = 'failed' and ended_at is not null;
