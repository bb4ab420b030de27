-- Settle: write down the attempts that did not succeed, all at once: retry at a later time, or dead letter.
-- Guard: only by its fence, and only while the event is in flight. What is answered was accepted; the rest had lost
-- their lease and nothing of them was written. The trail entry stands or falls with the change.
-- Values are found by the id's place in the arrays and not by a join (see turn.sql).
-- Differs from SQLite: one statement for all rows, the database's own clock.
with moment as materialized (
    select redrive.moment(:now::timestamptz) as now
), settled as (
    update redrive.outbox o
    set (status, due_at, first_failed_at, last_error, error_class, error_type, safe_to_retry, fingerprint, max_attempts,
         passed, ended_at) = (
        select (:statuses::text[])[n],
               case when (:statuses::text[])[n] = 'pending'
                    then m.now + make_interval(secs => (:delays::float8[])[n]) else o.due_at end,
               coalesce(o.first_failed_at, m.now),
               (:last_errors::text[])[n], (:error_classes::text[])[n], (:error_types::text[])[n],
               (:safe_to_retry::boolean[])[n], (:fingerprints::text[])[n], (:max_attempts::int[])[n], (:passed::boolean[])[n],
               case when (:statuses::text[])[n] = 'failed' then m.now end
        from moment m, array_position(:ids::uuid[], o.id) as n)
    where o.id = any(:ids::uuid[]) and coalesce(o.status, '') = 'in_flight'
      and o.fence = (:fences::bigint[])[array_position(:ids::uuid[], o.id)]
    returning o.id, o.target, o.ordering_key, o.passed, o.source, o.status, o.attempts, o.due_at, o.error_class, o.error_type,
              (:outcomes::text[])[array_position(:ids::uuid[], o.id)] as outcome
), grouped as (  -- before the trail: everybody takes these locks in this order
    select redrive.count_dead(array_agg(id), true, (select now from moment)) from settled where status = 'failed'
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
    from settled, grouped
), promoted as (
    select redrive.promote(array_agg(target), array_agg(ordering_key), :now::timestamptz, false) from settled
    where ordering_key is not null
)
select s.id from settled s, trailed, grouped, promoted
