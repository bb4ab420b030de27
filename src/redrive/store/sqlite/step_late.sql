-- Late step: its event ended while its function was running, and its effect is there: undo it like the others.
-- It has a row of its own, because its compensation may have been run already for a step whose end was not known.
insert into redrive_step (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select o.id, :cycle, :name || ' (late)', :position, 'compensating', :key, :result, :compensation, :compensation_id,
       :compensate_on, o.fence, :now - cast(:seconds * 1000000 as integer), :now
from redrive_outbox o
where o.id = :id and o.cycle = :now_cycle and o.status in ('failed', 'cancelled')
  and instr(',' || :compensate_on || ',', ',' ||
      case when o.status = 'cancelled' then 'cancelled'
           when o.error_type like '%DeadlinePassed'
                or (o.error_class = 'timed_out' and o.ended_at >= o.deadline_at) then 'deadline'
           else 'dead_letter' end || ',') > 0
on conflict (event_id, cycle, name) do nothing
