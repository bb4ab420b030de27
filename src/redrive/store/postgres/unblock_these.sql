-- Unblock these: let events go on that wait for nothing. Guard: they still do.
-- The time is read by redrive.moment, as wherever something becomes due now (see watermark.py).
with unblocked as (
    update redrive.outbox o set status = 'pending', due_at = m.now
    from (select redrive.moment(:now::timestamptz) as now) m
    where o.id = any(:ids::uuid[]) and o.status = 'blocked' and o.blocked_on is null and o.ordering_key is null
    returning o.id, o.queue
), woken as (
    select count(pg_notify('redrive', q.queue)) from (select distinct queue from unblocked) q
)
select u.id from unblocked u, woken
