-- Find batches whose deadline forces the final notice: at once, or a grace later where it fails what is left.
select id, name, leftovers, deadline_at, closed_at from redrive_batch
where final_at is null and deadline_at is not null
  and deadline_at + case leftovers when 'fail' then :grace * 1000000 else 0 end <= :now
order by deadline_at limit :limit
