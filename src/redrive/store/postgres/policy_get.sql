-- Policy get: what somebody said about one pattern.
select pattern, "values"::text as "values", set_by, set_at, reason from redrive.policy_override where pattern = :pattern::text
