-- Purge members: of redrives that ended long ago, and of plans that nobody started.
delete from redrive.redrive_item where ctid = any(array(
    select i.ctid from redrive.redrive r join redrive.redrive_item i on i.redrive_id = r.id
    where (r.state in ('done', 'aborted') and r.ended_at < :before::timestamptz and i.state <> 'released')
       or (r.state in ('planning', 'planned') and r.expires_at < :before::timestamptz)
    limit :limit))
