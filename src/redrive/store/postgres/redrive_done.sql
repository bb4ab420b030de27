-- Done: every member has ended. Guard: nothing is ready, nothing is outstanding.
update redrive.redrive set state = 'done', ended_at = coalesce(:now::timestamptz, clock_timestamp())
where id = :id::uuid and state = 'running'
  and not exists (select 1 from redrive.redrive_item i where i.redrive_id = :id::uuid and i.state in ('ready', 'released'))
returning id
