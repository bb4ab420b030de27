-- Payloads: what these events carry, as it is stored.
select id, payload::text as payload, headers::text as headers from redrive.outbox where id = any(:ids::uuid[])
