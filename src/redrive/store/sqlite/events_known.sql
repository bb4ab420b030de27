-- Known: which of these ids are here already.
select id from redrive_outbox where id in (select value from json_each(:ids))
