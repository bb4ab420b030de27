-- Dead counts: how many dead letters and groups there are, by type, error class and the state of the group.
select type, error_class, state, sum(dead_count)::bigint as dead, count(*) as groups
from redrive.failure_group where dead_count > 0
group by type, error_class, state order by dead desc, type, error_class, state
