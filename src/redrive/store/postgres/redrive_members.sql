-- Members: the next of those that a selection means, in the order of their ids. Every member is frozen with its cycle,
-- and why it may not go is said now. What became a dead letter after the plan was asked for is not meant.
insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, failed_at, state, reason, follows)
select :id::uuid, n.position, n.id, n.cycle, n.fingerprint, n.ended_at,
       case when n.why is null then 'ready' else 'ineligible' end, n.why,
       case when n.ordering_key is not null and n.why is null
            then lag(n.position) over (partition by n.target, n.ordering_key, n.why is null order by n.position) end
from (select :position::bigint + row_number() over (order by m.id) as position, m.* from (
    select id, cycle, fingerprint, ended_at, target, ordering_key,
        case
            when exists (select from redrive.event_handled h
                         where h.target = chosen.target and h.idempotency_key = chosen.idempotency_key)
                then 'already handled'
            when retry_key is not null and exists (
                select from redrive.outbox l where l.target = chosen.target and l.retry_key = chosen.retry_key
                and l.retry_key is not null and l.status in ('pending', 'in_flight', 'blocked'))
                then 'live duplicate of its retry key'
            when retry_key is not null and row_number() over (partition by target, retry_key order by id) > 1
                then 'second dead letter with its retry key'
            when exists (select from redrive.redrive_item i join redrive.redrive r on r.id = i.redrive_id
                         where i.event_id = chosen.id and i.state = 'ready' and r.state in ('running', 'paused', 'halted'))
                then 'in another redrive'
            when ordering_key is not null and (  -- more stand before it than go before it
                select count(*) from redrive.key_line l
                where l.target = chosen.target and l.ordering_key = chosen.ordering_key and l.status = 'failed'
                  and (l.created_at, l.id) < (chosen.created_at, chosen.id) and not exists (
                      select from redrive.redrive_item y
                      where y.redrive_id = :id::uuid and y.event_id = l.id and y.state = 'ready'))
                > count(*) filter (where not passed) over (partition by target, ordering_key order by created_at, id
                                                     rows between unbounded preceding and 1 preceding)
                then 'behind a failed head of its ordering key'
            when compensation = 'pending' then 'compensation under way'
            when compensation = 'failed' then 'compensation failed'
            when safe_to_retry is false and not :unsafe::boolean then 'not safe to retry'
            when cycle >= :budget::int then 'replay budget spent'
            when cardinality(:targets::text[]) > 0 and target <> all(:targets::text[]) then 'handler unknown'
        end as why
    from (select id, cycle, fingerprint, ended_at, created_at, target, idempotency_key, retry_key, ordering_key, passed,
                 compensation, safe_to_retry
          from redrive.outbox where status = 'failed' and deleted_at is null and id > :after::uuid
          and coalesce(ended_at, created_at) <= :until::timestamptz {where}
          order by id limit :limit::int) as chosen
) m) n
