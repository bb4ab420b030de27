-- Runs: of a reconciler or of all, the latest first.
select r.id, r.name, r.event_id, r.started_by, r.dry_run, r.state, r.started_at, r.ended_at, r.compared, r.missing, r.extra,
       r.different, r.published, r.coalesced, r.healed, r.sample, r.error
from redrive_reconcile_run r
where (:name is null or r.name = :name) and (:id is null or r.id like :id || '%')
order by r.started_at desc, r.id desc limit :limit
