-- Is due: whether anything of one lane is; a fifth of the time of a claim in vain, and most lanes are empty.
select 1 from redrive_outbox indexed by redrive_outbox_due
where status = 'pending' and queue = :queue and priority = :priority and generation = :generation and due_at <= :now
limit 1
