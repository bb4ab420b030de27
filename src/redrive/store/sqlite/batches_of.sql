-- Find the closed batches, not finished, that some events belong to. The first condition spares everybody else the look.
select distinct o.batch_id from redrive_outbox o
where exists (select 1 from redrive_batch b where b.final_at is null and b.closed_at is not null)
  and o.id in (select value from json_each(:ids)) and +o.batch_id is not null
