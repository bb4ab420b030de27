-- Discard: hide the next dead letters of a set, in the order of their ids. The rows stay and can be restored.
-- What became a dead letter after `until` was not in the set when it was shown, and stays.
update redrive.outbox o set deleted_at = coalesce(:now::timestamptz, clock_timestamp())
where o.id = any(array(
    select id from redrive.outbox
    where status = 'failed' and deleted_at is null and id > :after::uuid
      and (:until::timestamptz is null or coalesce(ended_at, created_at) <= :until::timestamptz) {where}
    order by id limit :limit::int for update))
returning o.id, o.source, o.fingerprint, o.target, o.ordering_key
