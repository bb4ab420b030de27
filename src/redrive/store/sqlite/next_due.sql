-- Next due: when the earliest event of these lanes comes due after now.
with lane (n, queue, priority, generation) as (values {lanes})
select min((select p.due_at from redrive_outbox p indexed by redrive_outbox_due
            where p.status = 'pending' and p.queue = l.queue and p.priority = l.priority
              and p.generation = l.generation and p.due_at > :now
            order by p.due_at limit 1))
from lane l
