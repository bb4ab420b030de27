-- Answered: which event converges each of these.
update redrive.finding x set event_id = f.event_id, converged_at = null
from json_to_recordset((:answers::text)::json) as f(id uuid, event_id uuid)
where x.id = f.id
