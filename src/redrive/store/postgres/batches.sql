-- List batches, newest first, a page at a time.
select * from redrive.batch
where (:before::uuid is null or id < :before::uuid) and (:name::text is null or name = :name::text)
  and (:first_id::uuid is null or id between :first_id::uuid and :last_id::uuid)
  and (not :unfinished::boolean or final_at is null)
order by id desc limit :limit::int
