-- Heal: what a run has not seen any more, a bounded number at a time. Guard: nobody has seen it since the run began.
update redrive.finding set state = 'healed', healed_at = coalesce(:now::timestamptz, clock_timestamp())
where id = any(array(
    select f.id from redrive.finding f
    where f.name = :name::text and f.state <> 'healed'
      and (f.last_seen_at < :started::timestamptz or (f.last_seen_at = :started::timestamptz and f.run_id <> :run::uuid))
    limit :limit::int))
returning id
