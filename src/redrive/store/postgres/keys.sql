-- Keys: ordering keys that a dead letter holds up, the oldest first; how many wait behind it is counted up to a cap.
select h.id as head, h.target, h.ordering_key, h.type, h.error_class, h.last_error, h.attempts, h.ended_at as since,
       (select count(*) from (select 1 from redrive.key_line w where w.target = h.target
                              and w.ordering_key = h.ordering_key and w.status <> 'failed' limit 10001) x) as waiting
from redrive.outbox h
where h.ordering_key is not null and h.status = 'failed' and h.deleted_at is null and not h.passed
  and (:ordering_key::text is null or h.ordering_key = :ordering_key::text)
  and (:target::text is null or h.target = :target::text)
  and (:after::uuid is null or h.id > :after::uuid)
  and not exists (select from redrive.key_line l where l.target = h.target and l.ordering_key = h.ordering_key
                  and l.status = 'failed' and (l.created_at, l.id) < (h.created_at, h.id))
order by h.id limit :limit
