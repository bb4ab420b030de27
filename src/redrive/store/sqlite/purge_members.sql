-- Purge members: of redrives that ended long ago, and of plans that nobody started.
-- `cross join` keeps the order: from the redrives, which are few. The other way round every worker read a million members
-- of a redrive that goes on, every minute, with the file locked meanwhile.
delete from redrive_redrive_item where (redrive_id, position) in (
    select i.redrive_id, i.position from redrive_redrive r cross join redrive_redrive_item i on i.redrive_id = r.id
    where ((r.state in ('done', 'aborted') and r.ended_at < :before)
           or (r.state in ('planning', 'planned') and r.expires_at < :before))
      and (i.state <> 'released' or r.state in ('planning', 'planned'))
    limit :limit)
