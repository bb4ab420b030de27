-- Write: put down a dependency as it was decided under its lock.
update redrive_dependency set
    state = :state, by_hand = :by_hand, failed_count = :failed_count, passed_count = :passed_count,
    counted_at = :counted_at, opened_at = :opened_at, opened_by = :opened_by,
    reason = :reason, openings = :openings, probe_at = :probe_at,
    probe_event_id = :probe_event_id, probe_until = :probe_until, closed_at = :closed_at,
    released_from = :released_from, released_count = :released_count
where name = :name
