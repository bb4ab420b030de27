-- Find closed batches whose final notice has not been sent although nothing can move any more; triggers were off, or
-- somebody has changed rows by hand. batch_look.sql does the rest.
select b.id, b.name from redrive_batch b
where b.final_at is null and b.closed_at is not null
  and (not exists (select 1 from redrive_outbox o where o.batch_id = b.id and o.batch_id is not null and o.ended_at is null)
       or (b.first_at is null and not exists (
           select 1 from redrive_outbox o where o.batch_id = b.id and o.batch_id is not null
           and o.ended_at is null and (o.first_failed_at is not null or o.cycle > 0) = 0)))
order by b.id limit :limit
