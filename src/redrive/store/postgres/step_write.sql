-- Write step: keep the result of a step, or that it was begun.
-- Guard: only by the fence of the lease. The event is locked meanwhile, so that whoever ends it sees every step.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), held as materialized (
    select o.id, o.fence from redrive.outbox o
    where o.id = :id::uuid and o.fence = :fence::bigint and o.status = 'in_flight' for share
)
insert into redrive.step as s (
    event_id, cycle, name, position, state, key, result, compensation, compensation_id, compensate_on, fence, started_at,
    ended_at)
select h.id, :cycle::int, :name::text, :position::int, :state::text, :key::text, (:result::text)::json,
       :compensation::text, :compensation_id::uuid, :compensate_on::text, h.fence,
       m.now - make_interval(secs => :seconds::float8), case when :state::text = 'done' then m.now end
from held h, moment m
on conflict (event_id, cycle, name) do update set
    state = excluded.state, result = excluded.result, fence = excluded.fence, started_at = excluded.started_at,
    ended_at = excluded.ended_at, compensation = excluded.compensation, compensate_on = excluded.compensate_on,
    compensation_id = case when excluded.compensation_id is not null then coalesce(s.compensation_id, excluded.compensation_id) end
returning name
