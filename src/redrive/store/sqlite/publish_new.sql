-- Publish new: put one event without a retry key in. It can meet no live twin, so this is a plain insert.
-- Differs from PostgreSQL: one row a statement; the writer says what time it is.
insert into redrive_outbox (
    id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
    ordering_key, queue, priority, due_at, generation, created_at, deadline_at,
    batch_id, batch_group)
values (
    :id, :type, :source, :target, :subject, :payload, :headers, :idempotency_key, :retry_key, :correlation_id,
    :causation_id, :ordering_key, :queue, :priority, max(coalesce(:due_at, :now), :now) + :delay, :generation, :now,
    coalesce(:deadline_at, :now + :deadline), :batch_id, :batch_group)
