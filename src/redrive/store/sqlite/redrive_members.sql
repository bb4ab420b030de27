-- Members: resolve the selection once; every member is frozen with its cycle, and why it may not go is said now.
-- Differs from PostgreSQL: the known targets travel as JSON.
insert into redrive_redrive_item (redrive_id, position, event_id, cycle, fingerprint, state, reason)
select :id, row_number() over (order by m.id), m.id, m.cycle, m.fingerprint,
       case when m.why is null then 'ready' else 'ineligible' end, m.why
from (
    select id, cycle, fingerprint,
        case
            when exists (select 1 from redrive_event_handled h
                         where h.target = redrive_outbox.target and h.idempotency_key = redrive_outbox.idempotency_key)
                then 'already handled'
            when retry_key is not null and exists (
                select 1 from redrive_outbox l where l.target = redrive_outbox.target
                and l.retry_key = redrive_outbox.retry_key and l.status in ('pending', 'in_flight', 'blocked'))
                then 'live duplicate of its retry key'
            when retry_key is not null and row_number() over (partition by target, retry_key order by id) > 1
                then 'second dead letter with its retry key'
            when exists (select 1 from redrive_redrive_item i join redrive_redrive r on r.id = i.redrive_id
                         where i.event_id = redrive_outbox.id and i.state = 'ready'
                         and r.state in ('running', 'paused', 'halted'))
                then 'in another redrive'
            when compensation = 'pending' then 'compensation under way'
            when compensation = 'failed' then 'compensation failed'
            when safe_to_retry = 0 and not :unsafe then 'not safe to retry'
            when cycle >= :budget then 'replay budget spent'
            when json_array_length(:targets) > 0 and target not in (select value from json_each(:targets))
                then 'handler unknown'
        end as why
    from redrive_outbox
    where status = 'failed' and deleted_at is null {where}
) m
