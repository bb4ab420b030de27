-- Attention, keys: the oldest dead letters that hold up their keys; who waits behind each is counted up to 101.
select h.id as head, h.target, h.ordering_key, h.ended_at as since,
       (select count(*) from (select 1 from redrive.key_line w where w.target = h.target
                              and w.ordering_key = h.ordering_key and w.status <> 'failed' limit 101) x) as waiting
from redrive.outbox h
where h.ordering_key is not null and h.status = 'failed' and h.deleted_at is null and not h.passed
  and not exists (select from redrive.key_line l where l.target = h.target and l.ordering_key = h.ordering_key
                  and l.status = 'failed' and (l.created_at, l.id) < (h.created_at, h.id))
order by h.id limit :limit
