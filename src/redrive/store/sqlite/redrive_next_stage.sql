-- Next stage: the gate is open.
update redrive_redrive set stage = :stage where id = :id
