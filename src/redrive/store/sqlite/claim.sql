-- Claim: take due events of one lane (queue, priority) with a fence of one more.
-- Differs from PostgreSQL: one lane a statement, no skipping of locked rows (one writer at a time), no watermark
-- (there are no dead index entries to step over).
update redrive_outbox
set status = 'in_flight', attempts = attempts + 1, fence = fence + 1, session_id = :session,
    lease_until = null
where seq in (
    select seq from redrive_outbox indexed by redrive_outbox_due
    where status = 'pending' and queue = :queue and priority = :priority and due_at <= :now
    order by due_at, seq
    limit :want)
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at, deadline_at
