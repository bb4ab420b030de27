-- Policies since: all of them if anything has changed since a version, and nothing otherwise.
-- One snapshot: what is answered belongs to the version that is answered with it.
select v.version, p.pattern, p."values"::text as "values", p.set_by, p.set_at, p.reason
from redrive.policy_version v left join redrive.policy_override p on true
where v.version <> :seen::bigint
