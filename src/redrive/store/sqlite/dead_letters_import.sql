-- Import: dead letters of another database, as they were there; what is here already is left alone.
-- A row is an object with instants as microseconds, and with payload, headers and history as JSON text.
insert into redrive_outbox (
    id, type, source, target, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
    ordering_key, queue, priority, due_at, attempts, lost_count, max_attempts, fence, generation, cycle,
    first_failed_at, last_error, error_class, error_type, safe_to_retry, fingerprint, failure_history, created_at,
    ended_at, deleted_at, deadline_at, payload, status, deferred_count, degraded,
    compensation, steps_from)
select
    json_extract(r.value, '$.id'), json_extract(r.value, '$.type'), json_extract(r.value, '$.source'),
    json_extract(r.value, '$.target'), json_extract(r.value, '$.subject'), json_extract(r.value, '$.headers'),
    json_extract(r.value, '$.idempotency_key'), json_extract(r.value, '$.retry_key'),
    json_extract(r.value, '$.correlation_id'), json_extract(r.value, '$.causation_id'),
    json_extract(r.value, '$.ordering_key'), json_extract(r.value, '$.queue'), json_extract(r.value, '$.priority'),
    json_extract(r.value, '$.due_at'), json_extract(r.value, '$.attempts'), json_extract(r.value, '$.lost_count'),
    json_extract(r.value, '$.max_attempts'), json_extract(r.value, '$.fence'),
    json_extract(r.value, '$.generation'), json_extract(r.value, '$.cycle'),
    json_extract(r.value, '$.first_failed_at'), json_extract(r.value, '$.last_error'),
    json_extract(r.value, '$.error_class'), json_extract(r.value, '$.error_type'),
    json_extract(r.value, '$.safe_to_retry'), json_extract(r.value, '$.fingerprint'),
    json_extract(r.value, '$.failure_history'), json_extract(r.value, '$.created_at'),
    json_extract(r.value, '$.ended_at'), json_extract(r.value, '$.deleted_at'),
    json_extract(r.value, '$.deadline_at'), json_extract(r.value, '$.payload'),
    'failed', json_extract(r.value, '$.deferred_count'), json_extract(r.value, '$.degraded'),
    json_extract(r.value, '$.compensation'), json_extract(r.value, '$.steps_from')
from json_each(:rows) r where true  -- without it SQLite reads the conflict clause as part of a join
on conflict (id) do nothing
returning id, source, fingerprint, deleted_at
