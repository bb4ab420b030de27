-- Check runs: comparisons that are under way by their row, while their event has ended, or for a whole day without one.
select r.id, r.name from redrive_reconcile_run r left join redrive_outbox o on o.id = r.event_id
where r.state = 'running'
  and ((r.event_id is null and r.started_at < :now - 86400000000)
       or (r.event_id is not null and (o.id is null or o.status in ('delivered', 'failed', 'cancelled'))))
limit :limit
