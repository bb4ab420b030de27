-- Unblock: let the oldest of those who wait for a dependency go on, a bounded number at a time.
-- The time is read by redrive.moment, as wherever something becomes due now (see watermark.py).
with unblocked as (
    update redrive.outbox o set status = 'pending', blocked_on = null, due_at = m.now
    from (select redrive.moment(:now::timestamptz) as now) m
    where o.id = any(array(
        select w.id from redrive.outbox w
        where w.status = 'blocked' and w.blocked_on = :name::text
        order by w.id limit :limit::int
        for update of w skip locked))
    returning o.id, o.queue
), woken as (
    select count(pg_notify('redrive', q.queue)) from (select distinct queue from unblocked) q
)
select u.id from unblocked u, woken
