-- Members: the next of those that a selection means, in the order of their ids. Every member is frozen with its cycle,
-- and why it may not go is said now; redrive_keyed.sql looks at retry keys, redrive_behind.sql and redrive_line.sql at
-- ordering keys. What became a dead letter after the
-- plan was asked for is not meant.
-- Differs from PostgreSQL: the known targets travel as JSON.
insert into redrive_redrive_item (redrive_id, position, event_id, cycle, fingerprint, failed_at, state, reason, line, place)
select :id, :position + row_number() over (order by m.id), m.id, m.cycle, m.fingerprint, m.ended_at,
       case when m.why is null then 'ready' else 'ineligible' end, m.why,
       case when m.ordering_key is not null then length(m.target) || ':' || m.target || ':' || m.ordering_key end,
       case when m.ordering_key is not null then m.seq end
from (
    select id, cycle, fingerprint, ended_at, target, ordering_key, seq,
        case
            when exists (select 1 from redrive_event_handled h
                         where h.target = chosen.target and h.idempotency_key = chosen.idempotency_key)
                then 'already handled'
            when retry_key is not null and exists (
                select 1 from redrive_outbox l where l.target = chosen.target
                and l.retry_key = chosen.retry_key and l.retry_key is not null
                and l.status in ('pending', 'in_flight', 'blocked'))
                then 'live duplicate of its retry key'
            when exists (select 1 from redrive_redrive_item i join redrive_redrive r on r.id = i.redrive_id
                         where i.event_id = chosen.id and i.state = 'ready'
                         and r.state in ('running', 'paused', 'halted'))
                then 'in another redrive'
            when compensation = 'pending' then 'compensation under way'
            when compensation = 'failed' then 'compensation failed'
            when safe_to_retry = 0 and not :unsafe then 'not safe to retry'
            when cycle >= :budget then 'replay budget spent'
            when json_array_length(:targets) > 0 and target not in (select value from json_each(:targets))
                then 'handler unknown'
        end as why
    from (select id, cycle, fingerprint, ended_at, target, idempotency_key, retry_key, compensation,
                 safe_to_retry, ordering_key, seq
          from redrive_outbox where status = 'failed' and deleted_at is null and id > :after
          and coalesce(ended_at, created_at) <= :until {where}
          order by id limit :limit) as chosen
) m
