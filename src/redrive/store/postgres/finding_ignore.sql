-- Ignore: a person says that a difference may stay; until it is gone, nothing is done about it.
update redrive.finding set state = 'ignored', note = :reason::text, noted_by = :by::text
where id = :id::uuid and state = 'open'
returning id
