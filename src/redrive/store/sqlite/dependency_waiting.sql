-- Waiting: how many events wait for a dependency, counted up to 10,001.
select count(*) as n from (
    select 1 from redrive_outbox indexed by redrive_outbox_blocked
    where status = 'blocked' and blocked_on = :name limit 10001) w
