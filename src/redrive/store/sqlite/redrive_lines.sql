-- Lines: the last of the next lines (a target and an ordering key) of a plan that have so many members together.
select x.line from (
    select l.line from redrive_redrive_item l indexed by redrive_redrive_item_line
    where l.redrive_id = :id and l.line > :after and l.line is not null and l.state in ('ready', 'released')
    order by l.line, l.place limit :limit) x
order by x.line desc limit 1
