-- Purge messages: forget the ids of messages that were taken in long ago, a bounded number at a time. A broker that
-- brings one of them again makes a second event.
delete from redrive.intake_seen where (source, message_id) in (
    select source, message_id from redrive.intake_seen where seen_at < :before::timestamptz order by seen_at limit :limit::bigint)
