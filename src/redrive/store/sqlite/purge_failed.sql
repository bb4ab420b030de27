-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
-- Guard: not a row that something still needs; retention.py lists who may.
delete from redrive_outbox where seq in (
    select o.seq from redrive_outbox o where o.status = 'failed' and o.ended_at < :before
      and coalesce(o.compensation, '') not in ('pending', 'failed')  -- its compensations have not ended
      and not exists (select 1 from redrive_step s where s.compensation_id = o.id)  -- it belongs to a saga
      and not exists (select 1 from redrive_redrive_item i  -- a redrive has not counted its outcome
                      where i.event_id = o.id and i.state = 'released')
      and not exists (select 1 from redrive_redrive_item i cross join redrive_redrive r on r.id = i.redrive_id
                      where i.event_id = o.id and i.state = 'ready'  -- a redrive may release it
                        and (r.state in ('running', 'paused', 'halted')
                             or (r.state in ('planning', 'planned') and r.expires_at > :now)))
      and (o.ordering_key is null or o.passed or o.deleted_at is not null or not exists (
           select 1 from redrive_key_line l where l.target = o.target and l.ordering_key = o.ordering_key
             and l.status in ('pending', 'blocked')))  -- others wait behind it
      and not exists (select 1 from redrive_batch b where b.id = o.batch_id and b.final_at is null)
    order by o.ended_at limit :limit)
returning case when deleted_at is null then fingerprint end, target, ordering_key
