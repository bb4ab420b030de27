-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
delete from redrive_outbox where seq in (
    select seq from redrive_outbox where status = 'failed' and ended_at < :before
      and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
      and not exists (select 1 from redrive_batch b where b.id = redrive_outbox.batch_id and b.final_at is null)
    order by ended_at limit :limit)
returning case when deleted_at is null then fingerprint end, target, ordering_key
