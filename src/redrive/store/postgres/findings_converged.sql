-- Converged: something was done about these. With `agree` somebody has looked and both sides agree: they are healed.
update redrive.finding x
set converged_at = m.now, state = case when :agree::boolean then 'healed' else x.state end,
    healed_at = case when :agree::boolean then m.now else x.healed_at end
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
where x.id = any(:ids::uuid[]) and x.state = 'open'
