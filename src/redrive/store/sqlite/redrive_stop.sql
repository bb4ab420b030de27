-- Stop: pause, halt or abort; what was not released stays as it is.
update redrive_redrive
set state = :to, stopped_by = :by, stop_reason = :reason, ended_at = case when :to = 'aborted' then :now end
where id = :id and state in ('planned', 'running', 'paused', 'halted') and state <> :to
returning id
