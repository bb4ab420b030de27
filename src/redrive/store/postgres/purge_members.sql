-- Purge members: of redrives that ended long ago, and of plans that nobody started.
delete from redrive.redrive_item where ctid = any(array(
    -- lateral: from the redrives, which are few; a plan must not read the members of all the others
    select i.ctid from redrive.redrive r cross join lateral (
        select x.ctid from redrive.redrive_item x
        where x.redrive_id = r.id and (x.state <> 'released' or r.state in ('planning', 'planned'))
        order by x.redrive_id, x.position limit :limit) i
    where (r.state in ('done', 'aborted') and r.ended_at < :before::timestamptz)
       or (r.state in ('planning', 'planned') and r.expires_at < :before::timestamptz)
    limit :limit))
