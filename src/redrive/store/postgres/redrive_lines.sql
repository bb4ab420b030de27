-- Lines: the last of the next lines (a target and an ordering key) of a plan that have so many members together.
select x.line from (
    select l.line from redrive.redrive_item l
    where l.redrive_id = :id::uuid and l.line > :after::text and l.line is not null and l.state in ('ready', 'released')
    order by l.line, l.place, l.event_id limit :limit::int) x
order by x.line desc limit 1
