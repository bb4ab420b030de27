-- Is due: which of these lanes (queue, priority, generation) have something that is; they are numbered from 0.
-- Most are empty, and a claim in vain takes five times as long. All in one statement: three looks one by one take 15 µs,
-- these 6, and a worker that waits looks several times a second.
with lane (n, queue, priority, generation) as (values {lanes})
select l.n from lane l
where exists (select 1 from redrive_outbox p indexed by redrive_outbox_due
              where p.status = 'pending' and p.queue = l.queue and p.priority = l.priority
                and p.generation = l.generation and p.due_at <= :now)
