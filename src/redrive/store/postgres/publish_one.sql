-- Publish one: put a single event without a retry key in. It can meet no live twin, so this is a plain insert; arrays
-- and the look for twins would make it half as slow again (0.60 ms instead of 0.41).
with published as (
    insert into redrive.outbox (
        id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, ordering_key,
        queue, priority, due_at, generation, created_at, batch_id, batch_group)
    select :id::uuid, :type::text, :source::text, :target::text, :subject::text, (:payload::text)::json,
           (:headers::text)::json, :idempotency_key::text, :correlation_id::text, :causation_id::text, :ordering_key::text,
           :queue::text, :priority::smallint,
           greatest(coalesce(:due_at::timestamptz, m.now), m.now) + make_interval(secs => :delay::float8),
           :generation::bigint, m.now, :batch_id::uuid, :batch_group::text
    from (select redrive.moment(:now::timestamptz) as now offset 0) m
    returning queue
)
select pg_notify('redrive', queue) from published where :notify::boolean
