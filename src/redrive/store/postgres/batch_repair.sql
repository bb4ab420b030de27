-- Find closed batches with a notice that has not been sent although it is due: triggers were off, or a transaction with a
-- snapshot of its own (repeatable read) could not see what others did. batch_look.sql does the rest.
select b.id, b.name from redrive.batch b
where b.final_at is null and b.closed_at is not null
  and not redrive.batch_any(b.id, 0) and not redrive.batch_any(b.id, 1)
  and (b.first_at is null or not (redrive.batch_any(b.id, 2) or redrive.batch_any(b.id, 3)))
order by b.id limit :limit::int
