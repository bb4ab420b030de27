-- Attention, groups: causes that have dead letters, those of compensations or the others; the latest failure first.
-- Since when: the oldest dead letter, if it is not behind many that were discarded.
select g.fingerprint, g.target, g.title, g.state, g.dead_count, g.owner, g.muted_until,
       coalesce((select d.ended_at from (
                     select o.ended_at, o.deleted_at from redrive.outbox o
                     where o.fingerprint = g.fingerprint and o.status = 'failed' order by o.id limit 10) d
                 where d.deleted_at is null limit 1), g.first_seen_at) as since
from redrive.failure_group g
where g.dead_count > 0 and (g.type = 'redrive.compensate') = :compensations::boolean
order by g.last_seen_at desc, g.fingerprint limit :limit
