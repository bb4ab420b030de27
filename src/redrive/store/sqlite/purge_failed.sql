-- Purge failed: remove dead letters that ended long ago. Only ever runs when somebody configured or asked for it.
delete from redrive_outbox where seq in (
    select seq from redrive_outbox where status = 'failed' and ended_at < :before limit :limit)
returning case when deleted_at is null then fingerprint end, target, ordering_key
