-- Release a key: its dead letters stay what they are and hold up nobody any more. Who waited for somebody faster looks
-- at each of them again.
update redrive.outbox set passed = true
where id = any(array(select l.id from redrive.key_line l
                     where l.target = :target::text and l.ordering_key = :ordering_key::text and l.status = 'failed'))
  and status = 'failed' and deleted_at is null and not passed
returning id, source
