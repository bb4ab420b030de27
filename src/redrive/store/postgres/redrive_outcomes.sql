-- Outcomes: the function does it, so that a replay from psql can, too.
select redrive.note_outcomes(:id::uuid, :now::timestamptz)
