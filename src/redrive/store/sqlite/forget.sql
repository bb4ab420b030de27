-- Forget: put back what this session holds in the database but not in its hands (the answer to a claim was lost).
-- The fence is raised: whoever runs one of them all the same must not find the pending row it wanted under the fence it
-- had. Differs from PostgreSQL: the list of what is held travels as JSON, and a call is never carried out late.
-- What a sweep had taken over in order to bury or time it out is not run again: the next sweep takes it over at once.
update redrive_outbox
set status = case when lost_count >= :max_lost or lease_until is not null then 'in_flight' else 'pending' end,
    attempts = case when lost_count >= :max_lost or lease_until is not null then attempts else attempts - 1 end,
    fence = fence + 1,
    due_at = :now,
    lease_until = case when lost_count >= :max_lost or lease_until is not null then :now end
where status = 'in_flight' and session_id = :session and id not in (select value from json_each(:held))
returning id
