-- Resume: go on after a pause or a halt; the meter starts anew, so that no burst makes up for the pause.
update redrive.redrive
set state = 'running', stopped_by = null, stop_reason = null, stopped_at = null, metered_from = coalesce(:now::timestamptz, clock_timestamp()), metered_count = released,
    stage = case when state = 'halted' then stage + 1 else stage end
where id = :id::uuid and state in ('paused', 'halted') and started_at is not null
returning id
