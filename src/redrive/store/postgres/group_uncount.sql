-- Uncount: take dead letters out of their groups. A group that is missing stays so, or it would count less than none.
select redrive.uncount_dead(:fingerprints::text[])
