-- Cancel: the function does it, so that psql and Python take the same path and leave the same trail.
select redrive.cancel(:id::uuid, :by::text, :reason::text, :now::timestamptz)
