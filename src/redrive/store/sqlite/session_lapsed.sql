-- Session lapsed: whether the lease of a session has run out whose process is not known to be gone.
-- PostgreSQL has no such look: there a transaction keeps no heartbeat out.
select 1 from redrive_session
where ended_at is null and lease_until < :now and id not in (select value from json_each(:gone)) limit 1
