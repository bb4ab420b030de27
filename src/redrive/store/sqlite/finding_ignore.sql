-- Ignore: a person says that a difference may stay; until it is gone, nothing is done about it.
update redrive_finding set state = 'ignored', note = :reason, noted_by = :by where id = :id and state = 'open'
returning id
