-- Import: dead letters of another database, as they were there; what is here already is left alone.
-- A row is an object with instants as microseconds, and with payload, headers and history as JSON text.
insert into redrive.outbox (
    id, type, source, target, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
    ordering_key, queue, priority, due_at, attempts, lost_count, max_attempts, fence, generation, cycle,
    first_failed_at, last_error, error_class, error_type, safe_to_retry, fingerprint, failure_history, created_at,
    ended_at, deleted_at, deadline_at, payload, status, deferred_count, degraded,
    compensation, steps_from)
select
    (r->>'id')::uuid, r->>'type', r->>'source', r->>'target', r->>'subject', (r->>'headers')::json,
    r->>'idempotency_key', r->>'retry_key', r->>'correlation_id', r->>'causation_id', r->>'ordering_key',
    r->>'queue', (r->>'priority')::smallint,
    'epoch'::timestamptz + (r->>'due_at')::bigint * interval '1 microsecond', (r->>'attempts')::int,
    (r->>'lost_count')::int, (r->>'max_attempts')::int, (r->>'fence')::bigint, (r->>'generation')::bigint,
    (r->>'cycle')::int, 'epoch'::timestamptz + (r->>'first_failed_at')::bigint * interval '1 microsecond',
    r->>'last_error', r->>'error_class', r->>'error_type', (r->>'safe_to_retry')::boolean, r->>'fingerprint',
    (r->>'failure_history')::jsonb, 'epoch'::timestamptz + (r->>'created_at')::bigint * interval '1 microsecond',
    'epoch'::timestamptz + (r->>'ended_at')::bigint * interval '1 microsecond',
    'epoch'::timestamptz + (r->>'deleted_at')::bigint * interval '1 microsecond',
    'epoch'::timestamptz + (r->>'deadline_at')::bigint * interval '1 microsecond', (r->>'payload')::json, 'failed',
    (r->>'deferred_count')::int, (r->>'degraded')::boolean, r->>'compensation', (r->>'steps_from')::int
from json_array_elements(:rows::text::json) r
on conflict (id) do nothing
returning id, source, fingerprint, deleted_at
