-- Schedule advance: go on to the next tick, in the transaction that publishes the event of this one.
-- The guard: whoever has seen another due time, or another definition, moves nothing. Instants are microseconds since 1970.
with wanted as materialized (
    select u.name, u.digest, epoch.at + u.expected * interval '1 microsecond' as expected,
           epoch.at + u.next * interval '1 microsecond' as next_at, epoch.at + u.last * interval '1 microsecond' as last_at,
           u.events, u.missed
    from (select timestamptz '1970-01-01 00:00:00+00' as at) epoch,
         unnest(:names::text[], :digests::text[], :expected::bigint[], :next_ats::bigint[], :last_ats::bigint[],
                :event_counts::bigint[], :missed_counts::bigint[])
         as u(name, digest, expected, next, last, events, missed)
), locked as materialized (
    select s.name from redrive.schedule s join wanted w on w.name = s.name
    where s.next_at = w.expected and s.digest = w.digest and s.paused_at is null
    for update of s skip locked
)
update redrive.schedule s
set next_at = w.next_at, last_at = coalesce(w.last_at, s.last_at), event_count = s.event_count + w.events,
    missed_count = s.missed_count + w.missed
from wanted w
where w.name = s.name and s.name = any(array(select l.name from locked l)) and s.next_at = w.expected
returning s.name
