-- Policy clear: take back what was said about a pattern.
delete from redrive_policy_override where pattern = :pattern
