-- Start: needs the digest of the plan, and that nobody was faster.
update redrive_redrive
set state = 'running', started_by = :by, started_at = :now, reason = :reason, generation = :generation,
    from_start = :from_start,
    rate = :rate, max_in_flight = :max_in_flight, ramp = :ramp, halt_at = :halt_at, gated = :gated, metered_from = :now
where id = :id and state = 'planned' and digest = :digest and expires_at > :now
returning id
