-- Find which of these ids are events here.
select id from redrive_outbox where id in (select value from json_each(:ids))
