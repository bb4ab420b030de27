-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
delete from redrive.outbox where id = any(array(
    select id from redrive.outbox where status in ('delivered', 'cancelled') and ended_at < :before::timestamptz
      and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
    order by ended_at limit :limit for update skip locked))
