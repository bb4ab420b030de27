-- Uncount: take purged dead letters out of their groups; their rows are gone already.
update redrive_failure_group
set dead_count = dead_count - (select count(*) from json_each(:fingerprints) f where f.value = fingerprint)
where fingerprint in (select value from json_each(:fingerprints))
