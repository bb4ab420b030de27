-- Transports: how it stands between every worker and its brokers.
select *, :now as now from redrive_transport_state order by kind, name, worker
