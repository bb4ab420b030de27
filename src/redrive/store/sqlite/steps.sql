-- Steps: everything an event has done, forgotten steps of earlier cycles included.
select s.*, s.cycle < o.steps_from as forgotten
from redrive_step s join redrive_outbox o on o.id = s.event_id
where s.event_id = :id order by s.cycle, s.position
