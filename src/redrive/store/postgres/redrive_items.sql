-- Items: a page of members with their outcome.
select position, event_id, cycle, fingerprint, state, reason, stage, released_at, ended_at
from redrive.redrive_item where redrive_id = :id::uuid and position > :after::bigint order by position limit :limit
