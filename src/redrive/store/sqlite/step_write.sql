-- Write step: keep the result of a step, or that it was begun.
-- Guard: only by the fence of the lease.
-- Differs from PostgreSQL: nothing is locked, there is one writer at a time.
insert into redrive_step (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select o.id, :cycle, :name, :position, :state, :key, :result, :compensation, :compensation_id, :compensate_on, o.fence,
       :now - cast(:seconds * 1000000 as integer), case when :state = 'done' then :now end
from redrive_outbox o where o.id = :id and o.fence = :fence and o.status = 'in_flight'
on conflict (event_id, cycle, name) do update set
    state = excluded.state, result = excluded.result, fence = excluded.fence, started_at = excluded.started_at,
    ended_at = excluded.ended_at, compensation = excluded.compensation, compensate_on = excluded.compensate_on,
    compensation_id = case when excluded.compensation_id is not null
                           then coalesce(redrive_step.compensation_id, excluded.compensation_id) end
returning name
