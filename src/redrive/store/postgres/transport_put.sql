-- Transport put: say how it stands between a worker and a broker.
insert into redrive.transport_state (name, worker, kind, broker, destination, state, since, error, ok_at, moved_count, lag, written_at)
values (:name::text, :worker::text, :kind::text, :broker::text, :destination::text, :state::text, :since::timestamptz,
        :error::text, :ok_at::timestamptz, :moved::bigint, :lag::bigint, coalesce(:now::timestamptz, clock_timestamp()))
on conflict (name, worker) do update set
    kind = excluded.kind, broker = excluded.broker, destination = excluded.destination, state = excluded.state,
    since = excluded.since, error = excluded.error, ok_at = excluded.ok_at, moved_count = excluded.moved_count,
    lag = excluded.lag, written_at = excluded.written_at
