-- Cancel all: the function does it, so that psql and Python take the same path and leave the same trail.
select redrive.cancel_all(:ids::uuid[], :by::text, :reason::text, :now::timestamptz) as id
