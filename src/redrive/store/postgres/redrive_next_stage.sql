-- Next stage: the gate is open.
update redrive.redrive set stage = :stage::int where id = :id::uuid
