-- End: how a run ended, and what it found and did. Guard: not twice.
update redrive_reconcile_run
set state = :state, ended_at = :now, compared = :compared, missing = :missing, extra = :extra, different = :different,
    published = :published, coalesced = :coalesced, healed = :healed, sample = :sample, error = :error
where id = :id and state = 'running'
returning id
