-- Schedule resume: go on with the next tick from now; those of the pause are not made up for.
update redrive.schedule set paused_at = null, paused_by = null, next_at = :next_at::timestamptz
where name = :name::text and paused_at is not null and digest = :digest::text
returning name
