-- Purge redrives: forget those whose members are forgotten. The trail keeps what was done.
delete from redrive_redrive
where ((state in ('done', 'aborted') and ended_at < :before) or (state in ('planning', 'planned') and expires_at < :before))
  and not exists (select 1 from redrive_redrive_item i where i.redrive_id = redrive_redrive.id)
