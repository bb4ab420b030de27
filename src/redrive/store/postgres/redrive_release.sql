-- Release: the function does it; a single replay takes the same path.
select event_id, why from redrive.release(
    :id::uuid, :limit::int, :stage::int, :priority::smallint, :chain::text, :now::timestamptz)
