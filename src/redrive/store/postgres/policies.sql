-- Policies: what operators have said, by pattern.
select pattern, "values"::text as "values", set_by, set_at, reason from redrive.policy_override order by pattern collate "C"
