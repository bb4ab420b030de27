-- Trail of event: everything that was recorded of one event, oldest first.
select chain, seq, at, event_id, kind, source, actor, detail, hash from redrive_trail
where event_id = :id
order by at, chain, seq
