-- Unsettled: which of these leases do not stand as their worker wanted them settled. Asked only when a settle was refused:
-- the answer to an earlier, successful one may have been lost on the way.
select s.id from unnest(:ids::uuid[], :fences::bigint[], :statuses::text[]) as s(id, fence, status)
where not exists (select from redrive.outbox o where o.id = s.id and o.fence = s.fence and o.status = s.status)
