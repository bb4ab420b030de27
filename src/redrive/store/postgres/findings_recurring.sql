-- Recurring: open findings that came back three times, or that five runs have seen: healing does not help, a person must.
select f.id, f.name, f.key, f.kind, f.desired, f.actual, f.state, f.first_seen_at, f.last_seen_at, f.seen_count,
       f.returned_count, f.run_id, f.event_id, f.converged_at, f.healed_at, f.note, f.noted_by,
       o.status as event_status
from redrive.finding f left join redrive.outbox o on o.id = f.event_id
where f.state = 'open' and (f.returned_count >= 3 or f.seen_count >= 5) and (:name::text is null or f.name = :name::text)
order by f.returned_count desc, f.seen_count desc, f.id limit :limit::int
