-- Intake take: remember messages; those that are answered are new.
-- Differs from SQLite: sorted, so that two who take the same messages at once wait for each other instead of dying.
insert into redrive.intake_seen (source, message_id, event_id, seen_at)
select g.source, g.message_id, g.event_id::uuid, coalesce(:now::timestamptz, clock_timestamp())
from unnest(:sources::text[], :ids::text[], :events::text[]) as g(source, message_id, event_id)
order by g.source, g.message_id
on conflict do nothing
returning source, message_id
