-- Import steps: what imported dead letters have finished, so that a replay goes on after it.
-- A row is an object with instants as microseconds, and with its result as JSON text. The fence is that of the event.
insert into redrive_step (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select o.id, json_extract(r.value, '$.cycle'), json_extract(r.value, '$.name'), json_extract(r.value, '$.position'),
       json_extract(r.value, '$.state'), json_extract(r.value, '$.key'), json_extract(r.value, '$.result'),
       json_extract(r.value, '$.compensation'), json_extract(r.value, '$.compensation_id'),
       json_extract(r.value, '$.compensate_on'), o.fence, json_extract(r.value, '$.started_at'),
       json_extract(r.value, '$.ended_at')
from json_each(:rows) r join redrive_outbox o on o.id = json_extract(r.value, '$.event_id')
