-- Restore: take the next discarded dead letters of a set back into the quarantine, in the order of their ids.
-- What was discarded after `until` was not in the set when it was shown, and stays.
update redrive.outbox o set deleted_at = null
where o.id = any(array(
    select id from redrive.outbox
    where status = 'failed' and deleted_at is not null and id > :after::uuid
      and (:until::timestamptz is null or deleted_at <= :until::timestamptz) {where}
    order by id limit :limit::int for update))
returning o.id, o.source, o.fingerprint
