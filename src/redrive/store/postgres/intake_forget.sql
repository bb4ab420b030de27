-- Intake forget: let go of old messages; a broker that brings one again after this makes a second event.
delete from redrive.intake_seen where (source, message_id) in (
    select source, message_id from redrive.intake_seen where seen_at < :before::timestamptz order by seen_at limit :limit::bigint)
returning 1 as gone
