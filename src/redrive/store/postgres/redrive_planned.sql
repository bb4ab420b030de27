-- Planned: the set is frozen; its digest is what a start must show.
update redrive.redrive set state = 'planned', digest = :digest::text, total = :total::bigint, ready = :ready::bigint, lined_up = true
where id = :id::uuid and state = 'planning'
