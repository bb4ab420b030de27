-- Claim: take due events of one lane (queue, priority, generation) with a fence of one more. What stands behind another
-- of its ordering key becomes blocked instead.
-- Differs from PostgreSQL: one lane a statement, no skipping of locked rows (one writer at a time), no watermark
-- (there are no dead index entries to step over).
update redrive_outbox
set status = case when due.waits then 'blocked' else 'in_flight' end,
    attempts = attempts + not due.waits, fence = fence + not due.waits,
    session_id = case when due.waits then session_id else :session end, lease_until = null
from (
    select p.seq as place,
           p.ordering_key is not null
           and (exists (select 1 from redrive_key_line l
                        where l.target = p.target and l.ordering_key = p.ordering_key and l.seq < p.seq)
                or exists (select 1 from redrive_key_busy f
                           where f.target = p.target and f.ordering_key = p.ordering_key)) as waits
    from redrive_outbox p indexed by redrive_outbox_due
    where p.status = 'pending' and p.queue = :queue and p.priority = :priority and p.generation = :generation
      and p.due_at <= :now
    order by p.due_at, p.seq
    limit :want) due
where seq = due.place
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at, deadline_at, status,
          -- whether somebody wrote into a column what SQLite takes and nobody can read: such a row is looked at closely
          not (typeof(payload) = 'text' and typeof(headers) = 'text' and typeof(type) = 'text' and typeof(target) = 'text'
               and typeof(source) = 'text' and typeof(idempotency_key) = 'text' and typeof(lost_count) = 'integer'
               and typeof(attempts) = 'integer' and typeof(fence) = 'integer' and typeof(cycle) = 'integer'
               and length(id) = 36 and created_at between -62135596800000000 and 253402300799999999
               and typeof(subject) <> 'blob' and typeof(retry_key) <> 'blob' and typeof(ordering_key) <> 'blob'
               and typeof(correlation_id) <> 'blob' and typeof(causation_id) <> 'blob'
               and due_at >= -62135596800000000
               and (deadline_at is null or deadline_at between -62135596800000000 and 253402300799999999)) as odd
