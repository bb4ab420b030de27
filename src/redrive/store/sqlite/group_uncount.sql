-- Uncount: take dead letters out of their groups. A group that is missing stays so, or it would count less than none.
update redrive_failure_group
set dead_count = dead_count - (select count(*) from json_each(:fingerprints) f where f.value = fingerprint)
where fingerprint in (select value from json_each(:fingerprints))
