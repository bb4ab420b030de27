-- Transports: how it stands between every worker and its brokers.
select *, coalesce(:now::timestamptz, clock_timestamp()) as now from redrive.transport_state order by kind, name, worker
