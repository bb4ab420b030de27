-- Begin: write down that a run has started. A further attempt at the same event goes on with its row.
insert into redrive_reconcile_run (id, name, event_id, started_by, dry_run, started_at)
values (:id, :name, :event_id, :by, :dry_run, :now)
on conflict (id) do update set state = 'running', started_at = excluded.started_at, ended_at = null, error = null,
    compared = 0, missing = 0, extra = 0, different = 0, published = 0, coalesced = 0, healed = 0, sample = '[]'
returning started_at
