-- Stop: pause or halt what runs, abort what is not over; what was not released stays as it is.
update redrive.redrive
set state = :to::text, stopped_by = :by::text, stop_reason = :reason::text,
    stopped_at = coalesce(:now::timestamptz, clock_timestamp()),
    ended_at = case when :to::text = 'aborted' then coalesce(:now::timestamptz, clock_timestamp()) end
where id = :id::uuid and (state = 'running' or (:to::text = 'aborted' and state in ('planning', 'planned', 'paused', 'halted')))
returning id
