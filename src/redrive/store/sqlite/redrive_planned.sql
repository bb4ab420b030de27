-- Planned: the set is frozen; its digest is what a start must show.
update redrive_redrive set state = 'planned', digest = :digest, total = :total, ready = :ready, lined_up = 1
where id = :id and state = 'planning'
