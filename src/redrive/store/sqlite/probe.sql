-- Probe: claim one event that waits for a dependency, to see whether it is back. The next after the last one that was
-- tried, round and round, so that one which fails for reasons of its own does not keep it shut.
-- As in a claim (claim.sql, whose columns these are): only of the worker's own generation or of none, and nothing that
-- stands behind another of its ordering key. A session that was swept may claim nothing.
update redrive_outbox
set status = 'in_flight', blocked_on = null, attempts = attempts + 1, fence = fence + 1, session_id = :session,
    lease_until = null
where seq in (
    select w.seq from redrive_outbox w indexed by redrive_outbox_blocked
    where w.status = 'blocked' and w.blocked_on = :name and w.id > :after
      and w.target in (select value from json_each(:targets)) and w.queue in (select value from json_each(:queues))
      and w.generation in (0, :generation)
      and (w.ordering_key is null or not (
          exists (select 1 from redrive_key_line l
                  where l.target = w.target and l.ordering_key = w.ordering_key and l.seq < w.seq)
          or exists (select 1 from redrive_key_busy f
                     where f.target = w.target and f.ordering_key = w.ordering_key)))
      and exists (select 1 from redrive_session s where s.id = :session and s.ended_at is null)
    order by w.id limit 1)
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at, deadline_at, status
