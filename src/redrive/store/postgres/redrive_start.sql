-- Start: needs the digest of the plan, and that nobody was faster.
update redrive.redrive
set state = 'running', started_by = :by::text, started_at = coalesce(:now::timestamptz, clock_timestamp()), reason = :reason::text, generation = :generation::bigint,
    from_start = :from_start::boolean,
    rate = :rate::float8, max_in_flight = :max_in_flight::int, ramp = :ramp::int[], halt_at = :halt_at::float8, gated = :gated::boolean, metered_from = coalesce(:now::timestamptz, clock_timestamp())
where id = :id::uuid and state = 'planned' and digest = :digest::text and expires_at > coalesce(:now::timestamptz, clock_timestamp())
returning id
