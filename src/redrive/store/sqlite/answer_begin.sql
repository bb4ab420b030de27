-- Answer begin: the first call with a key goes on. One that never came to an end gives way after a while.
insert into redrive_answer (caller, key, request, begun_at, expires_at)
values (:caller, :key, :request, :now, :now + cast(:seconds * 1000000 as integer))
on conflict (caller, key) do update
set request = excluded.request, status = null, headers = null, body = null, begun_at = excluded.begun_at,
    expires_at = excluded.expires_at
where redrive_answer.expires_at <= excluded.begun_at
   or (redrive_answer.status is null and redrive_answer.request = excluded.request
       and redrive_answer.begun_at <= excluded.begun_at - cast(:patience * 1000000 as integer))
returning key
