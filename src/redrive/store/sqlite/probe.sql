-- Probe: claim one event that waits for a dependency, to see whether it is back. The next after the last one that was
-- tried, round and round, so that one which fails for reasons of its own does not keep it shut.
-- The columns are those of a claim (claim.sql). A session that was swept may claim nothing.
update redrive_outbox
set status = 'in_flight', blocked_on = null, attempts = attempts + 1, fence = fence + 1, session_id = :session
where seq in (
    select seq from redrive_outbox indexed by redrive_outbox_blocked
    where status = 'blocked' and blocked_on = :name and id > :after
      and target in (select value from json_each(:targets)) and queue in (select value from json_each(:queues))
      and exists (select 1 from redrive_session s where s.id = :session and s.ended_at is null)
    order by id limit 1)
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at
