-- Next due: when the earliest event of one lane comes due after now.
select due_at from redrive_outbox indexed by redrive_outbox_due
where status = 'pending' and queue = :queue and priority = :priority and generation = :generation and due_at > :now
order by due_at limit 1
