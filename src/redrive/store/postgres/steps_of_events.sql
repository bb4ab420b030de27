-- Steps of events: everything that these have done, forgotten steps of earlier cycles included.
select s.event_id, s.name, s.cycle, s.position, s.state, s.key, s.result, s.compensation, s.compensation_id, s.compensate_on,
       s.started_at, s.ended_at
from redrive.step s where s.event_id = any(:ids::uuid[]) order by s.event_id, s.cycle, s.position
