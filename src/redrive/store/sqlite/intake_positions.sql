-- Intake positions: where messages stood that were stored. A row is a source and an id.
select s.source, s.message_id, s.position from json_each(:rows) r, redrive_intake_seen s
where s.source = r.value ->> 0 and s.message_id = r.value ->> 1
