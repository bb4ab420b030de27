-- Set: what people say about a group.
update redrive_failure_group
set owner = coalesce(:owner, owner), note = coalesce(:note, note), muted_until = coalesce(:muted_until, muted_until),
    state = coalesce(:state, case when state = 'new' then 'ongoing' else state end),
    resolved_at = case when :state = 'resolved' then :now else resolved_at end,
    resolved_by = case when :state = 'resolved' then :by else resolved_by end
where fingerprint = :fingerprint
returning fingerprint
