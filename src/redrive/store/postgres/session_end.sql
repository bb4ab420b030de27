-- Session end: a worker leaves. Whatever it could not hand back is found by the next sweep.
update redrive.session set ended_at = coalesce(:now::timestamptz, clock_timestamp()) where id = :id::uuid and ended_at is null
