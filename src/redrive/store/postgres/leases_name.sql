-- Name: events in flight without a session get the one that stands for nobody.
update redrive.outbox set session_id = :nobody::uuid
where id = any(:ids::uuid[]) and status = 'in_flight' and session_id is null
