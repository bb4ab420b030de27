-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
delete from redrive.outbox where id = any(array(
    select id from redrive.outbox where status in ('delivered', 'cancelled') and ended_at < :before::timestamptz
      and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
      and not exists (select from redrive.batch b where b.id = outbox.batch_id and b.final_at is null)
    order by ended_at limit :limit for update skip locked))
