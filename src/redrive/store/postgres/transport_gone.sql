-- Transport gone: forget what a worker said that has stopped, and what nobody has confirmed for a day.
delete from redrive.transport_state
where worker = :worker::text or written_at < coalesce(:now::timestamptz, clock_timestamp()) - interval '1 day'
