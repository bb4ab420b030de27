-- Eligibility: of a chunk of members how many may go, and why the others may not, by group.
select state, reason, fingerprint, count(*) as n, min(failed_at) as oldest, max(failed_at) as newest
from redrive.redrive_item where redrive_id = :id::uuid and position > :after::bigint group by state, reason, fingerprint
