-- Look at some closed batches: send the first notice where no member is untried, the final one where none is live; with
-- force, both anyhow. The trigger writes and publishes them.
-- Differs from PostgreSQL: the store looks here for what it delivers too, since no trigger does (see 0008_batches.sql).
update redrive_batch
set first_at = coalesce(first_at, :now),
    final_at = case when :force or not exists (
        select 1 from redrive_outbox o
        where o.batch_id = redrive_batch.id and o.batch_id is not null and o.ended_at is null) then :now end
where id in (select value from json_each(:ids)) and closed_at is not null and final_at is null
  and (:force or not exists (
      select 1 from redrive_outbox o where o.batch_id = redrive_batch.id and o.batch_id is not null
      and o.ended_at is null and (first_at is not null or (o.first_failed_at is not null or o.cycle > 0) = 0)))
returning id
