-- Pulse: a mark per table that differs when something in it has changed. SQLite, which does not count, has marks of ours.
select relname::text as name, (n_tup_ins + n_tup_upd + n_tup_del)::text as mark
from pg_stat_user_tables where schemaname = 'redrive'
