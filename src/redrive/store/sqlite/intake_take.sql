-- Intake take: remember messages; those that are answered are new.
insert into redrive_intake_seen (source, message_id, event_id, seen_at)
select s.value, i.value, e.value, :now
from json_each(:sources) s
join json_each(:ids) i on i.key = s.key
join json_each(:events) e on e.key = s.key
where true  -- without it SQLite reads the conflict clause as part of a join
on conflict do nothing
returning source, message_id
