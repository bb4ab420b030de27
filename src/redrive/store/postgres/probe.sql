-- Probe: claim one event that waits for a dependency, to see whether it is back. The next after the last one that was
-- tried, round and round, so that one which fails for reasons of its own does not keep it shut.
-- As in a claim (turn.sql, whose columns these are): only of the worker's own generation or of none, and nothing that
-- stands behind another of its ordering key. A session that was swept may claim nothing.
update redrive.outbox o
set status = 'in_flight', blocked_on = null, attempts = o.attempts + 1, fence = o.fence + 1, session_id = :session::uuid,
    lease_until = null
where o.id = any(array(
    select w.id from redrive.outbox w
    where w.status = 'blocked' and w.blocked_on = :name::text and w.id > :after::uuid
      and w.target = any(:targets::text[]) and w.queue = any(:queues::text[])
      and w.generation in (0, :generation::bigint)
      and (w.ordering_key is null or not (
          exists (select from redrive.key_line l
                  where l.target = w.target and l.ordering_key = w.ordering_key
                    and (l.created_at, l.id) < (w.created_at, w.id))
          or exists (select from redrive.key_busy f
                     where f.target = w.target and f.ordering_key = w.ordering_key)))
      and exists (select from redrive.session s where s.id = :session::uuid and s.ended_at is null)
    order by w.id limit 1
    for update of w skip locked))
returning o.id, o.fence, o.target, o.attempts, o.lost_count, o.payload, o.type, o.queue, o.priority,
          greatest(o.due_at, '0001-01-02 00:00:00+00') as due_at,
          o.source, o.subject, o.headers, o.idempotency_key, o.retry_key, o.correlation_id, o.causation_id,
          o.ordering_key, o.generation, o.cycle,
          least(greatest(o.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') as created_at,
          case when o.deadline_at is not null
               then least(greatest(o.deadline_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') end as deadline_at
