-- Count: add dead letters to their groups, in the transaction that makes or moves them.
select redrive.count_dead(:ids::uuid[], :is_new::boolean, coalesce(:now::timestamptz, clock_timestamp()))
