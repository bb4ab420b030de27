-- Meter: start it anew, a second ago, so that no burst makes up for what nobody released meanwhile.
update redrive.redrive
set metered_from = coalesce(:now::timestamptz, clock_timestamp()) - interval '1 second', metered_count = released
where id = :id::uuid
