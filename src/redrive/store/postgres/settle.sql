-- Settle: write down the attempts that did not succeed, all at once: retry at a later time, or dead letter.
-- Guard: only by its fence, and only while the event is in flight (`coalesce`: see turn.sql). What is answered was accepted; the rest had lost
-- their lease and nothing of them was written. The trail entry stands or falls with the change.
-- Differs from SQLite: one statement for all rows, the database's own clock.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), settled as (
    update redrive.outbox o
    set status = s.status,
        due_at = case when s.status = 'pending' then m.now + make_interval(secs => s.delay) else o.due_at end,
        first_failed_at = coalesce(o.first_failed_at, m.now),
        last_error = s.last_error, error_class = s.error_class, error_type = s.error_type,
        safe_to_retry = s.safe_to_retry, fingerprint = s.fingerprint, max_attempts = s.max_attempts,
        ended_at = case when s.status = 'failed' then m.now end
    from moment m, unnest(
        :ids::uuid[], :fences::bigint[], :statuses::text[], :delays::float8[], :last_errors::text[], :error_classes::text[],
        :error_types::text[], :safe_to_retry::boolean[], :fingerprints::text[], :max_attempts::int[], :outcomes::text[]
    ) as s(id, fence, status, delay, last_error, error_class, error_type, safe_to_retry, fingerprint, max_attempts, outcome)
    where o.id = s.id and o.fence = s.fence and coalesce(o.status, '') = 'in_flight'
    returning o.id, o.source, o.status, o.attempts, o.due_at, o.error_class, o.error_type, s.outcome
), trailed as (
    select redrive.write_trail(
        :chain::text, (select now from moment), array_agg(id),
        array_agg(case when status = 'failed' then 'dead-lettered' else 'retry-scheduled' end),
        array_agg(source), array_agg(:actor::text),
        array_agg(case when status = 'failed'
            then json_build_object('attempt', attempts, 'outcome', outcome, 'error_class', error_class,
                                   'error_type', error_type, 'dead_lettered_at', redrive.iso((select now from moment)))
            else json_build_object('attempt', attempts, 'outcome', outcome, 'error_class', error_class,
                                   'error_type', error_type, 'next_retry_at', redrive.iso(due_at)) end::text))
    from settled
)
select s.id from settled s, trailed
