-- Sweep: take what sessions that are gone still hold, a bounded number at a time; no leader needed.
-- Below the cap an event goes back to pending, its lost attempt counted apart. At the cap the sweeper takes the lease
-- itself and settles it as a dead letter on the usual path; if it dies meanwhile, the next sweep finds it.
-- The fence is raised either way: a late worker must not find the pending row it wanted under the fence it had.
-- An attempt that has run longer than its timeout while its worker did not answer (lease_until, see expire) is taken
-- over too: the sweeper holds it for a minute and settles it as timed out. Nothing was lost, so nothing is counted.
-- Guard: the ended session is marked first, so a heartbeat that comes late cannot revive it.
with moment as materialized (
    select redrive.moment(:now::timestamptz) as now
), ended as (
    update redrive.session s set ended_at = m.now from moment m
    where s.id = any(array(  -- one that somebody has locked is swept later
        select x.id from redrive.session x where x.ended_at is null and (x.lease_until < (select now from moment) or x.id = any(:gone::uuid[]))
        for update of x skip locked))
    returning s.id
), swept as (
    update redrive.outbox o
    set lost_count = o.lost_count + (o.lease_until is null)::int,
        attempts = case when o.lease_until is null and o.lost_count + 1 < :max_lost::int
                        then o.attempts - 1 else o.attempts end,
        status = case when o.lease_until is null and o.lost_count + 1 < :max_lost::int
                      then 'pending' else 'in_flight' end,
        fence = o.fence + 1,
        session_id = case when o.lease_until is null and o.lost_count + 1 < :max_lost::int
                          then o.session_id else :session::uuid end,
        -- the first loss is retried at once (a deploy, a spot instance), later ones with growing distance
        due_at = case when o.lease_until is not null then o.due_at
                      when o.lost_count = 0 then m.now
                      else m.now + make_interval(secs => least(:base::float8 * power(2, o.lost_count - 1), 60)) end,
        lease_until = case when o.lease_until is not null then m.now + interval '1 minute' end
    from moment m
    where o.id = any(array(
        select l.id from redrive.outbox l
        where l.status = 'in_flight'
          and l.session_id = any(array(
              select s.id from redrive.session s where s.ended_at is not null union select e.id from ended e))
        limit :limit
        for update of l skip locked)
        || array(
        select x.id from redrive.outbox x
        where x.status = 'in_flight' and x.lease_until <= (select now from moment)
        limit :limit
        for update of x skip locked))
    returning o.id, o.fence, o.target, o.attempts, o.lost_count, o.payload, o.type, o.queue, o.priority, o.due_at,
              o.source, o.subject, o.headers, o.idempotency_key, o.retry_key, o.correlation_id, o.causation_id,
              o.ordering_key, o.generation, o.cycle, o.created_at, o.deadline_at, o.status,
              o.lease_until
), trailed as (
    select redrive.write_trail(
        :chain::text, (select now from moment), array_agg(id), array_agg('lost'::text), array_agg(source),
        array_agg(:actor::text),
        array_agg(json_build_object('lost_count', lost_count, 'next_retry_at', redrive.iso(due_at))::text))
    from swept where lease_until is null
)
select s.* from swept s, trailed
