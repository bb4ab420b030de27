-- Members: resolve the selection once; every member is frozen with its cycle, and why it may not go is said now.
insert into redrive.redrive_item (redrive_id, position, event_id, cycle, fingerprint, state, reason)
select :id::uuid, row_number() over (order by m.id), m.id, m.cycle, m.fingerprint,
       case when m.why is null then 'ready' else 'ineligible' end, m.why
from (
    select id, cycle, fingerprint,
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
            when compensation = 'pending' then 'compensation under way'
            when compensation = 'failed' then 'compensation failed'
            when safe_to_retry is false and not :unsafe::boolean then 'not safe to retry'
            when cycle >= :budget::int then 'replay budget spent'
            when cardinality(:targets::text[]) > 0 and target <> all(:targets::text[]) then 'handler unknown'
        end as why
    from redrive.outbox
    where status = 'failed' and deleted_at is null {where}
) m
