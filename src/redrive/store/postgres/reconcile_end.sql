-- End: how a run ended, and what it found and did. Guard: not twice.
update redrive.reconcile_run
set state = :state::text, ended_at = coalesce(:now::timestamptz, clock_timestamp()), compared = :compared::bigint,
    missing = :missing::bigint, extra = :extra::bigint, different = :different::bigint, published = :published::bigint,
    coalesced = :coalesced::bigint, healed = :healed::bigint, sample = (:sample::text)::json, error = :error::text
where id = :id::uuid and state = 'running'
returning id
