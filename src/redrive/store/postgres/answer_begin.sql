-- Answer begin: the first call with a key goes on. One that never came to an end gives way after a while.
insert into redrive.answer (caller, key, request, begun_at, expires_at)
select :caller::text, :key::text, :request::text, t.now, t.now + make_interval(secs => :seconds::float8)
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) t
on conflict (caller, key) do update
set request = excluded.request, status = null, headers = null, body = null, begun_at = excluded.begun_at,
    expires_at = excluded.expires_at
where answer.expires_at <= excluded.begun_at
   or (answer.status is null and answer.request = excluded.request
       and answer.begun_at <= excluded.begun_at - make_interval(secs => :patience::float8))
returning key
