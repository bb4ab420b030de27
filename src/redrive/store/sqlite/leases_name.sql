-- Name: events in flight without a session get the one that stands for nobody.
update redrive_outbox set session_id = :nobody
where id in (select value from json_each(:ids)) and status = 'in_flight' and session_id is null
