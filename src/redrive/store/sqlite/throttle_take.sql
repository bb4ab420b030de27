-- Throttle take: claim the oldest of those who wait on a name, with the permits that were just given.
-- An ordering key is kept: one that stands behind another of its key by now, after a replay, waits on.
-- The columns are those of a claim (claim.sql). A session that was swept may claim nothing.
update redrive_outbox
set status = 'in_flight', blocked_on = null, attempts = attempts + 1, fence = fence + 1, session_id = :session,
    lease_until = null
where seq in (
    select w.seq from redrive_outbox w indexed by redrive_outbox_blocked
    where w.status = 'blocked' and w.blocked_on = :name
      and (w.ordering_key is null
           or not exists (select 1 from redrive_key_line l
                          where l.target = w.target and l.ordering_key = w.ordering_key and l.seq < w.seq)
              and not exists (select 1 from redrive_key_busy f
                              where f.target = w.target and f.ordering_key = w.ordering_key))
      and exists (select 1 from redrive_session s where s.id = :session and s.ended_at is null)
    order by w.id limit :limit)
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at, deadline_at
