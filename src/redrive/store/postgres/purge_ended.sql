-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
delete from redrive.outbox where id = any(array(
    select id from redrive.outbox where status in ('delivered', 'cancelled') and ended_at < :before::timestamptz
    order by ended_at limit :limit for update skip locked))
