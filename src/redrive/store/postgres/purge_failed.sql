-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
-- The next of their ordering keys may go.
with gone as (
    delete from redrive.outbox where id = any(array(
        select id from redrive.outbox where status = 'failed' and ended_at < :before::timestamptz
          and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
          and not exists (select from redrive.batch b where b.id = outbox.batch_id and b.final_at is null)
        order by ended_at limit :limit for update skip locked))
    returning case when deleted_at is null then fingerprint end as fingerprint, target, ordering_key
), promoted as (
    select redrive.promote(array_agg(target), array_agg(ordering_key), :now::timestamptz) from gone where ordering_key is not null
)
select g.fingerprint from gone g, promoted
