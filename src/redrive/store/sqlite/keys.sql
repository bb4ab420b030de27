-- Keys: ordering keys that a dead letter holds up, the oldest first; how many wait behind it is counted up to a cap.
select h.id as head, h.target, h.ordering_key, h.type, h.error_class, h.last_error, h.attempts, h.ended_at as since,
       (select count(*) from (select 1 from redrive_key_line w where w.target = h.target
                              and w.ordering_key = h.ordering_key and w.status <> 'failed' limit 10001)) as waiting
from redrive_outbox h
where h.ordering_key is not null and h.status = 'failed' and h.deleted_at is null and h.passed = 0
  and (:ordering_key is null or h.ordering_key = :ordering_key)
  and (:target is null or h.target = :target)
  and (:after is null or h.id > :after)
  and not exists (select 1 from redrive_key_line l where l.target = h.target and l.ordering_key = h.ordering_key
                  and l.status = 'failed' and l.seq < h.seq)
order by h.id limit :limit
