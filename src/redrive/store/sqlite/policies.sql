-- Policies: what operators have said, by pattern.
select pattern, "values", set_by, set_at, reason from redrive_policy_override order by pattern
