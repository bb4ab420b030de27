-- Write: put down a dependency as it was decided under its lock.
update redrive.dependency set
    state = :state::text, by_hand = :by_hand::boolean, failed_count = :failed_count::bigint, passed_count = :passed_count::bigint,
    counted_at = :counted_at::timestamptz, opened_at = :opened_at::timestamptz, opened_by = :opened_by::text,
    reason = :reason::text, openings = :openings::int, probe_at = :probe_at::timestamptz,
    probe_event_id = :probe_event_id::uuid, probe_until = :probe_until::timestamptz, closed_at = :closed_at::timestamptz,
    released_from = :released_from::timestamptz, released_count = :released_count::bigint
where name = :name::text
