-- Session end: a worker leaves. Whatever it could not hand back is found by the next sweep.
-- One that somebody has locked is left to its lease: who stops does not wait.
update redrive.session set ended_at = coalesce(:now::timestamptz, clock_timestamp())
where id = any(array(
    select s.id from redrive.session s where s.id = :id::uuid and s.ended_at is null for update of s skip locked))
