-- Resume: go on after a pause or a halt; the meter starts anew, so that no burst makes up for the pause. After a halt a
-- ramp goes on with its next stage, and what comes then is judged by itself.
update redrive.redrive
set state = 'running', stopped_by = null, stop_reason = null, stopped_at = null, metered_from = coalesce(:now::timestamptz, clock_timestamp()), metered_count = released,
    stage = case when state = 'halted' and stage < cardinality(ramp) then stage + 1 else stage end,
    judged_delivered = case when state = 'halted' then delivered else judged_delivered end,
    judged_same = case when state = 'halted' then failed_same else judged_same end,
    judged_other = case when state = 'halted' then failed_other else judged_other end
where id = :id::uuid and state in ('paused', 'halted') and started_at is not null
returning id
