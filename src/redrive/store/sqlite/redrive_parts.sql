-- Parts: what the groups of a plan are.
select fingerprint, type, target, error_class from redrive_failure_group
where fingerprint in (select value from json_each(:fingerprints))
