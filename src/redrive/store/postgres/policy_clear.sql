-- Policy clear: take back what was said about a pattern.
delete from redrive.policy_override where pattern = :pattern::text
