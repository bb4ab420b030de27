-- Look at some closed batches: send the first notice where no member is untried, the final one where none is live; with
-- force, anyhow. The trigger writes and publishes it.
-- Differs from PostgreSQL: one kind at a time, the first one first; and the store looks here for what it delivers, since
-- no trigger does (see 0008_batches.sql).
update redrive_batch
set first_at = case when :kind = 'first' then :now else first_at end,
    final_at = case when :kind = 'final' then :now else final_at end
where id in (select value from json_each(:ids)) and closed_at is not null and final_at is null
  and case when :kind = 'first'
      then first_at is null and (:force or not exists (
          select 1 from redrive_outbox o where o.batch_id = redrive_batch.id and o.batch_id is not null
          and o.ended_at is null and (o.first_failed_at is not null or o.cycle > 0) = 0))
      else first_at is not null and (:force or not exists (
          select 1 from redrive_outbox o
          where o.batch_id = redrive_batch.id and o.batch_id is not null and o.ended_at is null)) end
returning id
