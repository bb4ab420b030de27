-- Import steps: what imported dead letters have finished, so that a replay goes on after it.
-- A row is an object with instants as microseconds, and with its result as JSON text. The fence is that of the event.
insert into redrive.step (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select o.id, (r->>'cycle')::int, r->>'name', (r->>'position')::int, r->>'state', r->>'key', (r->>'result')::json,
       r->>'compensation', (r->>'compensation_id')::uuid, r->>'compensate_on', o.fence,
       'epoch'::timestamptz + (r->>'started_at')::bigint * interval '1 microsecond',
       'epoch'::timestamptz + (r->>'ended_at')::bigint * interval '1 microsecond'
from json_array_elements(:rows::text::json) r join redrive.outbox o on o.id = (r->>'event_id')::uuid
