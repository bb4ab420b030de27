-- Late step: its event ended while its function was running, and its effect is there: undo it like the others.
-- It has a row of its own, because its compensation may have been run already for a step whose end was not known.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), ended as materialized (
    select o.id, o.fence from redrive.outbox o
    where o.id = :id::uuid and o.cycle = :now_cycle::int and o.status in ('failed', 'cancelled')
      and redrive.ending(o) = any(string_to_array(:compensate_on::text, ',')) for update
)
insert into redrive.step (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select e.id, :cycle::int, :name::text || ' (late)', :position::int, 'compensating', :key::text, (:result::text)::json,
       :compensation::text, :compensation_id::uuid, :compensate_on::text, e.fence,
       m.now - make_interval(secs => :seconds::float8), m.now
from ended e, moment m
on conflict (event_id, cycle, name) do nothing
