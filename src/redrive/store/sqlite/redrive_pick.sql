-- Pick: the next members of a redrive, and why one of them may no longer go (a part of release on PostgreSQL).
select i.position, i.event_id, i.fingerprint, o.source, o.cycle + 1 as next_cycle,
       -- its own if a worker serves that, else the latest that one serves, else its own; every worker serves generation 0
       coalesce(:generation, case when o.generation = 0 then 0 end, (
           select coalesce(max(iif(s.generation = o.generation, s.generation, null)), max(s.generation)) from redrive_session s
           where s.ended_at is null and s.lease_until > :now
             and o.queue in (select value from json_each(s.queues))
             and o.target in (select value from json_each(s.targets))), o.generation) as generation,
       case when o.id is null then 'the event is gone'
            when o.status <> 'failed' then 'it is ' || o.status
            when o.deleted_at is not null then 'it was discarded'
            when o.cycle <> i.cycle then 'it was replayed by somebody else'
            when o.compensation = 'pending' then 'its compensation is under way'
            when o.compensation = 'failed' then 'its compensation failed, see to that first'
            when exists (select 1 from redrive_event_handled h
                         where h.target = o.target and h.idempotency_key = o.idempotency_key) then 'already handled'
            when o.retry_key is not null and (
                exists (select 1 from redrive_outbox l where l.target = o.target and l.retry_key = o.retry_key
                        and l.status in ('pending', 'in_flight', 'blocked'))
                or row_number() over (partition by o.target, o.retry_key order by i.position) > 1)
                then 'another event with its retry key is under way'
            when o.ordering_key is not null and exists (
                select 1 from redrive_key_line l where l.target = o.target and l.ordering_key = o.ordering_key
                and l.status = 'failed' and l.seq < o.seq)
                then 'behind a failed head of its ordering key' end as why,
       :from_start or coalesce(o.compensation, '') = 'done' as from_start
from (select * from redrive_redrive_item indexed by redrive_redrive_item_free
      where redrive_id = :id and state = 'ready' and waits = 0 order by position limit :limit) i
left join redrive_outbox o on o.id = i.event_id
order by i.position
