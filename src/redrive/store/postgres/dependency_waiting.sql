-- Waiting: how many events wait for a dependency, counted up to 10,001.
select count(*) as n from (
    select from redrive.outbox where status = 'blocked' and blocked_on = :name::text limit 10001) w
