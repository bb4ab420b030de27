-- Intake backlog: count the events that have not ended, up to a limit.
select count(*) as n from (
    select 1 from redrive_outbox where status in ('pending', 'in_flight', 'blocked') limit :limit)
