-- Replay: the function does it, so that psql and Python take the same path and leave the same trail.
select redrive.replay(:id::uuid, :generation::bigint, :by::text, :reason::text, :now::timestamptz, :from_start::boolean)
