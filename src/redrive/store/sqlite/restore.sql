-- Restore: take the next discarded dead letters of a set back into the quarantine, in the order of their ids.
-- What was discarded after `until` was not in the set when it was shown, and stays.
update redrive_outbox set deleted_at = null
where id in (
    select id from redrive_outbox
    where status = 'failed' and deleted_at is not null and id > :after
      and (:until is null or deleted_at <= :until) {where}
    order by id limit :limit)
returning id, source, fingerprint
