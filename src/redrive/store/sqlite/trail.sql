-- Trail: a page of entries in the order of their chains.
select chain, seq, at, event_id, kind, source, actor, detail, hash from redrive_trail
where (chain, seq) > (:chain, :seq)
order by chain, seq
limit :limit
