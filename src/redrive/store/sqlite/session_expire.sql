-- Session expire: end the sessions whose lease ran out, or whose process is known to be gone, before their events are swept
-- (a part of sweep on PostgreSQL). Guard: not by its lease while nobody could write to the file (waited).
update redrive_session set ended_at = :now
where ended_at is null and (lease_until < :now and not :waited or id in (select value from json_each(:gone)))
