-- Answered: which event converges each of these.
update redrive_finding
set event_id = (select json_extract(f.value, '$.event_id') from json_each(:answers) f
                where json_extract(f.value, '$.id') = redrive_finding.id),
    converged_at = null
where id in (select json_extract(f.value, '$.id') from json_each(:answers) f)
