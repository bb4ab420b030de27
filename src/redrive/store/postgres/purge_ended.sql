-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
-- Guard: not a row that something still needs; retention.py lists who may.
delete from redrive.outbox where id = any(array(
    select o.id from redrive.outbox o where o.status in ('delivered', 'cancelled') and o.ended_at < :before::timestamptz
      and not (o.status = 'cancelled' and o.session_id is not null)  -- its handler may still run, and keeps its key
      and coalesce(o.compensation, '') not in ('pending', 'failed')  -- its compensations have not ended
      and not exists (select from redrive.step s where s.compensation_id = o.id offset 0)  -- it belongs to a saga
      and not exists (select from redrive.redrive_item i  -- a redrive has not counted its outcome
                      where i.event_id = o.id and i.state = 'released' offset 0)
      and not exists (select from redrive.batch b where b.id = o.batch_id and b.final_at is null)
    order by o.ended_at limit :limit for update of o skip locked))
