-- Steps kept: how the event stands, and the steps that count in this cycle, with their results.
select o.fence, o.status, o.steps_from, s.name, s.cycle, s.position, s.state, s.result
from redrive.outbox o left join redrive.step s on s.event_id = o.id and s.cycle >= o.steps_from
where o.id = :id::uuid
