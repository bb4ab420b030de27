-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
delete from redrive_outbox where seq in (
    select seq from redrive_outbox where status in ('delivered', 'cancelled') and ended_at < :before
      and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
      and not exists (select 1 from redrive_batch b where b.id = redrive_outbox.batch_id and b.final_at is null)
    order by ended_at limit :limit)
