-- Sessions of: the sessions of processes that can be seen from one place, if they have not ended.
select id, process from redrive_session where ended_at is null and substr(process, 1, length(:place) + 1) = :place || ':'
