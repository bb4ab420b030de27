-- Members: resolve the selection once; every member is frozen with its cycle, and why it may not go is said now.
insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, state, reason, follows)
select :id::uuid, n.position, n.id, n.cycle, n.fingerprint, case when n.why is null then 'ready' else 'ineligible' end, n.why,
       case when n.ordering_key is not null and n.why is null
            then lag(n.position) over (partition by n.target, n.ordering_key, n.why is null order by n.position) end
from (select row_number() over (order by m.place, m.id) as position, m.* from (
    select id, cycle, fingerprint, target, ordering_key,
        -- of each ordering key the first comes before everybody's second
        case when ordering_key is null then 1
             else row_number() over (partition by target, ordering_key order by created_at, id) end as place,
        case
            when exists (select from redrive.event_handled h
                         where h.target = outbox.target and h.idempotency_key = outbox.idempotency_key)
                then 'already handled'
            when retry_key is not null and exists (
                select from redrive.outbox l where l.target = outbox.target and l.retry_key = outbox.retry_key
                and l.status in ('pending', 'in_flight', 'blocked')) then 'live duplicate of its retry key'
            when retry_key is not null and row_number() over (partition by target, retry_key order by id) > 1
                then 'second dead letter with its retry key'
            when exists (select from redrive.redrive_item i join redrive.redrive r on r.id = i.redrive_id
                         where i.event_id = outbox.id and i.state = 'ready' and r.state in ('running', 'paused', 'halted'))
                then 'in another redrive'
            when ordering_key is not null and (
                select count(*) from redrive.key_line l where l.target = outbox.target and l.ordering_key = outbox.ordering_key
                and l.status = 'failed' and (l.created_at, l.id) < (outbox.created_at, outbox.id))
                > count(*) filter (where not passed) over (partition by target, ordering_key order by created_at, id
                                                      rows between unbounded preceding and 1 preceding)
                then 'behind a failed head of its ordering key'
            when safe_to_retry is false and not :unsafe::boolean then 'not safe to retry'
            when cycle >= :budget::int then 'replay budget spent'
            when cardinality(:targets::text[]) > 0 and target <> all(:targets::text[]) then 'handler unknown'
        end as why
    from redrive.outbox
    where status = 'failed' and deleted_at is null {where}
) m) n
