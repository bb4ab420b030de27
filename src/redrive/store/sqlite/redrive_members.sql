-- Members: resolve the selection once; every member is frozen with its cycle, and why it may not go is said now.
-- Differs from PostgreSQL: the known targets travel as JSON.
insert into redrive_redrive_item (redrive_id, position, event_id, cycle, fingerprint, state, reason, follows)
select :id, n.position, n.id, n.cycle, n.fingerprint, case when n.why is null then 'ready' else 'ineligible' end, n.why,
       case when n.ordering_key is not null and n.why is null
            then lag(n.position) over (partition by n.target, n.ordering_key, n.why is null order by n.position) end
from (select row_number() over (order by m.place, m.id) as position, m.* from (
    select id, cycle, fingerprint, target, ordering_key,
        -- of each ordering key the first comes before everybody's second
        case when ordering_key is null then 1
             else row_number() over (partition by target, ordering_key order by seq) end as place,
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
            when ordering_key is not null and (
                select count(*) from redrive_key_line l where l.target = redrive_outbox.target and l.ordering_key = redrive_outbox.ordering_key
                and l.status = 'failed' and l.seq < redrive_outbox.seq)
                > count(*) filter (where passed = 0) over (partition by target, ordering_key order by seq
                                                      rows between unbounded preceding and 1 preceding)
                then 'behind a failed head of its ordering key'
            when safe_to_retry = 0 and not :unsafe then 'not safe to retry'
            when cycle >= :budget then 'replay budget spent'
            when json_array_length(:targets) > 0 and target not in (select value from json_each(:targets))
                then 'handler unknown'
        end as why
    from redrive_outbox
    where status = 'failed' and deleted_at is null {where}
) m) n
