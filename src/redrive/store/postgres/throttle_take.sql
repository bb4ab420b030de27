-- Throttle take: claim the oldest of those who wait on a name, with the permits that were just given.
-- An ordering key is kept: one that stands behind another of its key by now, after a replay, waits on.
-- The columns are those of a claim (turn.sql). A session that was swept may claim nothing.
update redrive.outbox o
set status = 'in_flight', blocked_on = null, attempts = o.attempts + 1, fence = o.fence + 1, session_id = :session::uuid,
    lease_until = null
where o.id = any(array(
    select w.id from redrive.outbox w
    where w.status = 'blocked' and w.blocked_on = :name::text
      and (w.ordering_key is null
           or not exists (select from redrive.key_line l
                          where l.target = w.target and l.ordering_key = w.ordering_key
                            and (l.created_at, l.id) < (w.created_at, w.id))
              and not exists (select from redrive.key_busy f
                              where f.target = w.target and f.ordering_key = w.ordering_key))
      and exists (select from redrive.session s where s.id = :session::uuid and s.ended_at is null)
    order by w.id limit :limit::int
    for update of w skip locked))
returning o.id, o.fence, o.target, o.attempts, o.lost_count, o.payload, o.type, o.queue, o.priority, o.due_at,
          o.source, o.subject, o.headers, o.idempotency_key, o.retry_key, o.correlation_id, o.causation_id,
          o.ordering_key, o.generation, o.cycle, o.created_at, o.deadline_at
