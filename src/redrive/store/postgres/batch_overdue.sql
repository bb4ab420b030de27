-- Find batches whose deadline forces the final notice: at once, or a grace later where it fails what is left.
select id, name, leftovers, deadline_at, closed_at from redrive.batch
where final_at is null and deadline_at is not null and deadline_at <= coalesce(:now::timestamptz, clock_timestamp())
  and deadline_at + case leftovers when 'fail' then make_interval(secs => :grace::float8) else interval '0' end
      <= coalesce(:now::timestamptz, clock_timestamp())
order by deadline_at limit :limit::int
