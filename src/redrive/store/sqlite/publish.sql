-- Publish: put one event in, in whatever transaction this runs.
-- A live event with the same target and retry key is answered instead of inserting another.
-- Differs from PostgreSQL: one row a statement; the caller says what time it is, and the file knows better when that
-- clock was set back.
insert into redrive_outbox (
    id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
    ordering_key, queue, priority, due_at, generation, created_at, deadline_at,
    batch_id, batch_group)
values (
    :id, :type, :source, :target, :subject, :payload, :headers, :idempotency_key, :retry_key, :correlation_id, :causation_id,
    :ordering_key, :queue, :priority, max(coalesce(:due_at, :now), :now, (select highest from redrive_clock)) + :delay, :generation,
    max(:now, (select highest from redrive_clock)),
    coalesce(:deadline_at, max(:now, (select highest from redrive_clock)) + :deadline), :batch_id, :batch_group)
on conflict (target, retry_key) where retry_key is not null and status in ('pending', 'in_flight', 'blocked')
    do update set retry_key = excluded.retry_key
returning id, target, retry_key, batch_id
