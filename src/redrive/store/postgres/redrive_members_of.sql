-- Members of a redrive by group, the largest groups first.
select g.fingerprint, g.members, f.target, f.type, f.error_class, f.title, f.state, f.sample_event_id
from redrive.redrive_group g left join redrive.failure_group f on f.fingerprint = g.fingerprint
where g.redrive_id = :id::uuid order by g.members desc limit :limit::int
