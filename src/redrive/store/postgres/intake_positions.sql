-- Intake positions: where messages stood that were stored. A row is a source and an id.
select s.source, s.message_id, s.position from redrive.intake_seen s, json_array_elements((:rows::text)::json) r
where s.source = r ->> 0 and s.message_id = r ->> 1
