-- Findings: of a reconciler or of all, the latest first.
select f.id, f.name, f.key, f.kind, f.desired, f.actual, f.state, f.first_seen_at, f.last_seen_at, f.seen_count,
       f.returned_count, f.run_id, f.event_id, f.converged_at, f.healed_at, f.note, f.noted_by,
       o.status as event_status
from redrive.finding f left join redrive.outbox o on o.id = f.event_id
where (:name::text is null or f.name = :name::text) and (:state::text is null or f.state = :state::text)
  and (:run::uuid is null or f.run_id = :run::uuid) and (:id::text is null or f.id::text like :id::text || '%')
order by f.last_seen_at desc, f.id limit :limit::int
