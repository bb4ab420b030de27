-- Session end: a worker leaves. Whatever it could not hand back is found by the next sweep.
update redrive_session set ended_at = :now where id = :id and ended_at is null
