-- Intake take: remember messages; those that are answered are new. A row is its source, its id, its event and its position.
-- Differs from SQLite: sorted, so that two who take the same messages at once wait for each other instead of dying.
insert into redrive.intake_seen (source, message_id, event_id, seen_at, position)
select r ->> 0, r ->> 1, (r ->> 2)::uuid, coalesce(:now::timestamptz, clock_timestamp()), r ->> 3
from json_array_elements((:rows::text)::json) r
order by r ->> 0, r ->> 1
on conflict do nothing
returning source, message_id
