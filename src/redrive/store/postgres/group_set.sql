-- Set: what people say about a group.
update redrive.failure_group
set owner = coalesce(:owner::text, owner), note = coalesce(:note::text, note), muted_until = coalesce(:muted_until::timestamptz, muted_until),
    state = coalesce(:state::text, case when state = 'new' then 'ongoing' else state end),
    resolved_at = case when :state::text = 'resolved' then coalesce(:now::timestamptz, clock_timestamp()) else resolved_at end,
    resolved_by = case when :state::text = 'resolved' then :by::text else resolved_by end
where fingerprint = :fingerprint::text
returning fingerprint
