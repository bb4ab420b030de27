-- Known: which of these ids are here already.
select id from redrive.outbox where id = any(:ids::uuid[])
