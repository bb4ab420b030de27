-- Release a key: its dead letters stay what they are and hold up nobody any more.
update redrive_outbox set passed = 1
where seq in (select l.seq from redrive_key_line l
              where l.target = :target and l.ordering_key = :ordering_key and l.status = 'failed')
returning id, source
