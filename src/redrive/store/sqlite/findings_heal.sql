-- Heal: what a run has not seen any more, a bounded number at a time. Guard: nobody has seen it since the run began.
update redrive_finding set state = 'healed', healed_at = :now
where id in (
    select id from redrive_finding
    where name = :name and state <> 'healed'
      and (last_seen_at < :started or (last_seen_at = :started and run_id <> :run))
    limit :limit)
returning id
