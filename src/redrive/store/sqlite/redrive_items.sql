-- Items: a page of members with their outcome.
select position, event_id, cycle, fingerprint, state, reason, stage, released_at, ended_at
from redrive_redrive_item where redrive_id = :id and position > :after order by position limit :limit
