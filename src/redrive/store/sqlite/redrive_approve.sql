-- Approve: a second person agrees with a plan.
update redrive_redrive set approved_by = :by, approved_at = :now where id = :id and state = 'planned'
returning id
