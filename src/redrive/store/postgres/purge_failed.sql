-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
-- Guard: not a row that something still needs; retention.py lists who may.
-- An event that came to stand behind one of them meanwhile may go.
with gone as (
    delete from redrive.outbox where id = any(array(
        select o.id from redrive.outbox o where o.status = 'failed' and o.ended_at < :before::timestamptz
          and coalesce(o.compensation, '') not in ('pending', 'failed')  -- its compensations have not ended
          and not exists (select from redrive.step s where s.compensation_id = o.id offset 0)  -- it belongs to a saga
          and not exists (select from redrive.redrive_item i  -- a redrive has not counted its outcome
                          where i.event_id = o.id and i.state = 'released' offset 0)
          and not exists (select from redrive.redrive_item i join redrive.redrive r on r.id = i.redrive_id
                          where i.event_id = o.id and i.state = 'ready'  -- a redrive may release it
                            and (r.state in ('running', 'paused', 'halted') or (r.state in ('planning', 'planned')
                                 and r.expires_at > coalesce(:now::timestamptz, clock_timestamp()))) offset 0)
          and (o.ordering_key is null or o.passed or o.deleted_at is not null or not exists (
               select from redrive.key_line l where l.target = o.target and l.ordering_key = o.ordering_key
                 and l.status in ('pending', 'blocked') offset 0))  -- others wait behind it
          and not exists (select from redrive.batch b where b.id = o.batch_id and b.final_at is null)
        order by o.ended_at limit :limit for update of o skip locked))
    returning case when deleted_at is null then fingerprint end as fingerprint, target, ordering_key
), promoted as (
    select redrive.promote(array_agg(target), array_agg(ordering_key), :now::timestamptz) from gone where ordering_key is not null
)
select g.fingerprint from gone g, promoted
