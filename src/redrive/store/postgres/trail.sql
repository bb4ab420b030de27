-- Trail: a page of entries in the order of their chains.
select chain, seq, at, event_id, kind, source, actor, detail, hash from redrive.trail
where (chain, seq) > (:chain::text, :seq::bigint)
order by chain, seq
limit :limit
