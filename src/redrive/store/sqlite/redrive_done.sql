-- Done: every member has ended. Guard: nothing is ready, nothing is outstanding.
update redrive_redrive set state = 'done', ended_at = :now
where id = :id and state = 'running'
  and not exists (select 1 from redrive_redrive_item i where i.redrive_id = :id and i.state in ('ready', 'released'))
returning id
