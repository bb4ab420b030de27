-- Republishable: what a route has delivered in a window, in the order of publishing; copies of it are left out.
select id, type, source, target, subject, payload::text as payload, headers::text as headers, idempotency_key, correlation_id,
       causation_id, ordering_key, generation
from redrive.outbox
where target = :target::text and status = 'delivered' and ended_at >= :since::timestamptz and ended_at < :until::timestamptz
  and id > :after::uuid and (retry_key is null or retry_key not like :copies::text)
order by id limit :limit::bigint
