-- Settle: write down the attempts that did not succeed, all at once: retry at a later time, wait for something, or dead
-- letter. An attempt that spends nothing is taken back from the count; one that was not made leaves the last error.
-- Guard: only by its fence, and only while the event is in flight. What is answered was accepted; the rest had lost
-- their lease and nothing of them was written. The trail entry stands or falls with the change.
-- Values are found by the id's place in the arrays and not by a join (see turn.sql).
-- Differs from SQLite: one statement for all rows, the database's own clock.
with moment as materialized (
    select redrive.moment(:now::timestamptz) as now
), settled as (
    update redrive.outbox o
    set (status, due_at, attempts, deferred_count, blocked_on, first_failed_at, last_error, error_class, error_type,
         safe_to_retry, fingerprint, max_attempts, passed, ended_at) = (
        select (:statuses::text[])[n],
               case when (:statuses::text[])[n] = 'pending'
                    then m.now + make_interval(secs => (:delays::float8[])[n]) else o.due_at end,
               o.attempts - (not (:spends::boolean[])[n])::int,
               o.deferred_count + ((:rounds::boolean[])[n])::int,
               (:blocked_on::text[])[n],
               case when (:last_errors::text[])[n] = '' then o.first_failed_at
                    else coalesce(o.first_failed_at, m.now) end,
               coalesce(nullif((:last_errors::text[])[n], ''), o.last_error),
               case when (:last_errors::text[])[n] = '' then o.error_class else (:error_classes::text[])[n] end,
               case when (:last_errors::text[])[n] = '' then o.error_type else (:error_types::text[])[n] end,
               case when (:last_errors::text[])[n] = '' then o.safe_to_retry else (:safe_to_retry::boolean[])[n] end,
               coalesce((:fingerprints::text[])[n], o.fingerprint), coalesce((:max_attempts::int[])[n], o.max_attempts),
               (:passed::boolean[])[n],
               case when (:statuses::text[])[n] = 'failed' then m.now end
        from moment m, array_position(:ids::uuid[], o.id) as n)
    where o.id = any(:ids::uuid[]) and coalesce(o.status, '') = 'in_flight'
      and o.fence = (:fences::bigint[])[array_position(:ids::uuid[], o.id)]
    returning o.id, o.target, o.ordering_key, o.source, o.status, o.attempts, o.due_at, o.blocked_on, o.error_class,
              o.error_type, (:outcomes::text[])[array_position(:ids::uuid[], o.id)] as outcome,
              (:last_errors::text[])[array_position(:ids::uuid[], o.id)] <> '' as tried
), grouped as (  -- groups and keys before the trail: everybody takes these locks in this order
    select redrive.count_dead(array_agg(id), true, (select now from moment)) from settled where status = 'failed'
), promoted as (
    select redrive.promote(array_agg(target), array_agg(ordering_key), :now::timestamptz, false) from settled
    where ordering_key is not null
), trailed as (
    select redrive.write_trail(
        :chain::text, (select now from moment), array_agg(id),
        array_agg(case status when 'failed' then 'dead-lettered' when 'blocked' then 'blocked' else 'retry-scheduled' end),
        array_agg(source), array_agg(:actor::text),
        array_agg(case when status = 'failed'
            then json_build_object('attempt', attempts, 'outcome', outcome, 'error_class', error_class,
                                   'error_type', error_type, 'dead_lettered_at', redrive.iso((select now from moment)))
            when status = 'blocked'
            then json_build_object('blocked_on', blocked_on, 'tried', tried)
            else json_build_object('attempt', attempts, 'outcome', outcome, 'error_class', error_class,
                                   'error_type', error_type, 'next_retry_at', redrive.iso(due_at)) end::text))
    from settled, grouped, promoted
)
select s.id from settled s, trailed, grouped, promoted
