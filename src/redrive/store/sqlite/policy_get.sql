-- Policy get: what somebody said about one pattern.
select pattern, "values", set_by, set_at, reason from redrive_policy_override where pattern = :pattern
