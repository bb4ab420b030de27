-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
delete from redrive.outbox where id = any(array(
    select id from redrive.outbox where status = 'failed' and ended_at < :before::timestamptz
      and coalesce(compensation, '') not in ('pending', 'failed')  -- what is left to undo is still needed
    limit :limit for update skip locked))
returning case when deleted_at is null then fingerprint end
