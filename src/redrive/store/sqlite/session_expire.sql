-- Session expire: end the sessions whose lease ran out, before their events are swept (a part of sweep on PostgreSQL).
update redrive_session set ended_at = :now where ended_at is null and lease_until < :now
