-- Forget: put back what this session holds in the database but not in its hands. It happens when the answer to a
-- claim was lost on the way: the rows are ours, their lease is being renewed, and nobody would ever run them.
-- Guard: a server that fell silent may carry this out long after we have given up waiting for it, and would then put
-- back what we have claimed since. The fence is raised: whoever runs one of them all the same must not find the pending
-- row it wanted under the fence it had.
-- A row that somebody else has locked is passed over: the next look finds it.
-- What a sweep had taken over in order to bury or time it out is not run again: the next sweep takes it over at once.
update redrive.outbox o
set status = case when o.lost_count >= :max_lost::int or o.lease_until is not null then 'in_flight' else 'pending' end,
    attempts = case when o.lost_count >= :max_lost::int or o.lease_until is not null then o.attempts else o.attempts - 1 end,
    fence = o.fence + 1,
    due_at = redrive.moment(:now::timestamptz),
    lease_until = case when o.lost_count >= :max_lost::int or o.lease_until is not null then redrive.moment(:now::timestamptz) end
where o.id = any(array(
    select x.id from redrive.outbox x
    where x.status = 'in_flight' and x.session_id = :session::uuid and x.id <> all(:held::uuid[])
      and (select clock_timestamp()) < :until::timestamptz
    for update of x skip locked))
returning o.id
