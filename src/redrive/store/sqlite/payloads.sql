-- Payloads: what these events carry, as it is stored.
select id, payload, headers from redrive_outbox where id in (select value from json_each(:ids))
