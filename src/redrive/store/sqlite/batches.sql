-- List batches, newest first, a page at a time.
select * from redrive_batch
where (:before is null or id < :before) and (:name is null or name = :name)
  and (:first_id is null or id between :first_id and :last_id) and (:unfinished = 0 or final_at is null)
order by id desc limit :limit
