-- Find which of these ids are events here.
select id from redrive.outbox where id = any (array(select given::uuid from json_array_elements_text(:ids::json) as given))
