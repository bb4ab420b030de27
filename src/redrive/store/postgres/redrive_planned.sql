-- Planned: the set is frozen; its digest is what a start must show.
update redrive.redrive set digest = :digest::text, total = :total::bigint, ready = :ready::bigint where id = :id::uuid
