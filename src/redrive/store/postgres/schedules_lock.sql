-- Schedules lock: keep others from changing these until the end of the transaction, also those that are not there yet.
-- Ticks pass: they do not change what a schedule is. What is read after this, in a statement of its own, stays so.
select pg_advisory_xact_lock(hashtextextended('redrive.schedule:' || n.name, 0))
from (select unnest(:names::text[]) as name order by 1) n
