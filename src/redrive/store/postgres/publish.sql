-- Publish: put events in, any number at once, in whatever transaction this runs.
-- A live event with the same target and retry key is answered instead of inserting another. Its row is not touched: a lock
-- on it would make the worker that holds it wait for the caller's commit. One that appeared after our snapshot is neither
-- inserted nor seen, so its key is not answered: ask again.
-- Differs from SQLite: one statement for all rows (arrays), and it wakes sleeping workers.
with moment as materialized (
    select redrive.moment(:now::timestamptz) as now
), published as (
    insert into redrive.outbox as o (
        id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
        ordering_key, queue, priority, due_at, generation, created_at, deadline_at,
        batch_id, batch_group)
    select g.id, g.type, g.source, g.target, g.subject, g.payload::json, g.headers::json, g.idempotency_key, g.retry_key,
           g.correlation_id, g.causation_id, g.ordering_key, g.queue, g.priority,
           -- never before now: the claim's watermark relies on rows appearing to the right of it
           greatest(coalesce(g.due_at, m.now), m.now) + make_interval(secs => g.delay),
           g.generation, m.now, coalesce(g.deadline_at, m.now + make_interval(secs => g.deadline)),
           g.batch_id, g.batch_group
    from moment m, unnest(
        :ids::uuid[], :types::text[], :sources::text[], :targets::text[], :subjects::text[], :payloads::text[],
        :headers::text[], :idempotency_keys::text[], :retry_keys::text[], :correlation_ids::text[], :causation_ids::text[],
        :ordering_keys::text[], :queues::text[], :priorities::smallint[], :delays::float8[], :due_ats::timestamptz[],
        :generations::bigint[], :deadline_ats::timestamptz[], :deadlines::float8[], :batch_ids::uuid[], :batch_groups::text[]
    ) as g(id, type, source, target, subject, payload, headers, idempotency_key, retry_key, correlation_id, causation_id,
           ordering_key, queue, priority, delay, due_at, generation, deadline_at, deadline,
           batch_id, batch_group)
    on conflict (target, retry_key) where retry_key is not null and status in ('pending', 'in_flight', 'blocked')
        do nothing
    returning o.id, o.target, o.retry_key, o.batch_id, o.queue
), woken as (
    select count(pg_notify('redrive', w.queue)) as n from (select distinct queue from published) w where :notify::boolean
)
select p.id, p.target, p.retry_key, p.batch_id from published p, woken
union all
select l.id, g.target, g.retry_key, l.batch_id
from unnest(:targets::text[], :retry_keys::text[]) as g(target, retry_key)
cross join lateral (
    select o.id, o.batch_id from redrive.outbox o
    where o.target = g.target and o.retry_key = g.retry_key and o.status in ('pending', 'in_flight', 'blocked')
    limit 1
) l
where g.retry_key is not null
  and (g.target, g.retry_key) not in (select p.target, p.retry_key from published p where p.retry_key is not null)
