-- Attention, redrives: those that stand still and may be waiting for somebody, the oldest first.
-- A plan that has expired cannot be started any more, and waits for nobody.
select id, state, sentence, digest, ready, planned_by, planned_at, approved_by, approved_at, stopped_by, stop_reason, edited,
       coalesce(stopped_at, started_at, planned_at) as stopped_at
from redrive_redrive indexed by redrive_redrive_standing
where state in ('planning', 'planned', 'paused', 'halted')
  and (state in ('paused', 'halted')
       or (state = 'planned' and expires_at > :now
           and (approved_at is not null or edited or ready > coalesce(:approval, 9223372036854775807)
                or (planned_by like 'agent:%' and ready > :agents)))
       or (state = 'planning' and planned_at < :now - 1000000 * :planning))
order by id limit :limit
