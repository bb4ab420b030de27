-- Sessions of: the sessions of processes that can be seen from one place, if they have not ended.
select id, process from redrive.session where ended_at is null and starts_with(process, :place::text || ':')
