-- Trail of a chain: the newest entries first, a page at a time.
select chain, seq, at, event_id, kind, source, actor, detail, hash from redrive_trail
where chain = :chain and (:before is null or seq < :before)
order by seq desc limit :limit
