-- Discard: hide the next dead letters of a set, in the order of their ids. The rows stay and can be restored.
-- What became a dead letter after `until` was not in the set when it was shown, and stays.
update redrive_outbox set deleted_at = :now
where id in (
    select id from redrive_outbox
    where status = 'failed' and deleted_at is null and id > :after
      and (:until is null or coalesce(ended_at, created_at) <= :until) {where}
    order by id limit :limit)
returning id, source, fingerprint, target, ordering_key
