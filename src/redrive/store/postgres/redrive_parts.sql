-- Parts: what the groups of a plan are.
select fingerprint, type, target, error_class from redrive.failure_group where fingerprint = any(:fingerprints::text[])
