-- Purge redrives: forget those whose members are forgotten. The trail keeps what was done.
delete from redrive.redrive r
where ((r.state in ('done', 'aborted') and r.ended_at < :before::timestamptz)
       or (r.state in ('planning', 'planned') and r.expires_at < :before::timestamptz))
  and not exists (select from redrive.redrive_item i where i.redrive_id = r.id)
