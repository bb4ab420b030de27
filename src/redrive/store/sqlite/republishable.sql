-- Republishable: what a route has delivered in a window, in the order of publishing; copies of it are left out.
select id, type, source, target, subject, payload, headers, idempotency_key, correlation_id, causation_id, ordering_key, generation
from redrive_outbox
where target = :target and status = 'delivered' and ended_at >= :since and ended_at < :until and id > :after
  and (retry_key is null or retry_key not like :copies)
order by id limit :limit
