-- Stop: pause or halt what runs, abort what is not over; what was not released stays as it is.
update redrive_redrive
set state = :to, stopped_by = :by, stop_reason = :reason, stopped_at = :now,
    ended_at = case when :to = 'aborted' then :now end
where id = :id and (state = 'running' or (:to = 'aborted' and state in ('planning', 'planned', 'paused', 'halted')))
returning id
