-- Trail of a chain: the newest entries first, a page at a time.
select chain, seq, at, event_id, kind, source, actor, detail, hash from redrive.trail
where chain = :chain::text and (:before::bigint is null or seq < :before::bigint)
order by seq desc limit :limit::int
