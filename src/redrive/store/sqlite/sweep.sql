-- Sweep: take what sessions that are gone still hold, a bounded number at a time; no leader needed.
-- Below the cap an event goes back to pending, its lost attempt counted apart. At the cap the sweeper takes the lease
-- itself and settles it as a dead letter on the usual path; if it dies meanwhile, the next sweep finds it.
-- The fence is raised either way: a late worker must not find the pending row it wanted under the fence it had.
-- An attempt that has run longer than its timeout while its worker did not answer (lease_until, see expire) is taken
-- over too: the sweeper holds it for a minute and settles it as timed out. Nothing was lost, so nothing is counted.
-- Differs from PostgreSQL: sessions are ended and the trail is written beside it in the same transaction.
update redrive_outbox
set lost_count = lost_count + (lease_until is null),
    attempts = case when lease_until is null and lost_count + 1 < :max_lost then attempts - 1 else attempts end,
    status = case when lease_until is null and lost_count + 1 < :max_lost then 'pending' else 'in_flight' end,
    fence = fence + 1,
    session_id = case when lease_until is null and lost_count + 1 < :max_lost then session_id else :session end,
    due_at = case
        when lease_until is not null then due_at
        when lost_count = 0 then :now
        else :now + min(:base << (min(lost_count, 30) - 1), 60000000) end,
    lease_until = case when lease_until is not null then :now + 60000000 end
where seq in (
    select seq from (
        select o.seq from redrive_outbox o indexed by redrive_outbox_in_flight
        where o.status = 'in_flight' and o.session_id in (select id from redrive_session where ended_at is not null)
        limit :limit)
    union
    select seq from (
        select o.seq from redrive_outbox o indexed by redrive_outbox_expired
        where o.status = 'in_flight' and o.lease_until <= :now
        limit :limit))
returning id, fence, target, attempts, lost_count, payload, type, queue, priority, due_at,
          source, subject, headers, idempotency_key, retry_key, correlation_id, causation_id,
          ordering_key, generation, cycle, created_at, deadline_at, status, lease_until
