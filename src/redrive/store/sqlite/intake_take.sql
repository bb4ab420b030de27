-- Intake take: remember messages; those that are answered are new. A row is its source, its id and its event.
insert into redrive_intake_seen (source, message_id, event_id, seen_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, :now
from json_each(:rows) r where true  -- without it SQLite reads the conflict clause as part of a join
on conflict do nothing
returning source, message_id
