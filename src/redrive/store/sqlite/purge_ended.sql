-- Purge ended: remove delivered and cancelled events that ended long ago, a bounded number at a time.
-- Guard: not a row that something still needs; retention.py lists who may.
delete from redrive_outbox where seq in (
    select o.seq from redrive_outbox o where o.status in ('delivered', 'cancelled') and o.ended_at < :before
      and not (o.status = 'cancelled' and o.session_id is not null)  -- its handler may still run, and keeps its key
      and coalesce(o.compensation, '') not in ('pending', 'failed')  -- its compensations have not ended
      and not exists (select 1 from redrive_step s where s.compensation_id = o.id)  -- it belongs to a saga
      and not exists (select 1 from redrive_redrive_item i  -- a redrive has not counted its outcome
                      where i.event_id = o.id and i.state = 'released')
      and not exists (select 1 from redrive_batch b where b.id = o.batch_id and b.final_at is null)
    order by o.ended_at limit :limit)
