-- Intake take: remember messages; those that are answered are new. A row is its source, its id, its event and its position.
insert into redrive_intake_seen (source, message_id, event_id, seen_at, position)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, :now, r.value ->> 3
from json_each(:rows) r where true  -- without it SQLite reads the conflict clause as part of a join
on conflict do nothing
returning source, message_id
