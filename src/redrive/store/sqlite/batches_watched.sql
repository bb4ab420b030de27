-- Batches watched: the newest, the oldest that are closed and have not ended, and those that are asked for.
select m.now, b.id, b.closed_at, b.first_at, b.final_at
from (select :now as now) m
left join (
    select id from (select id from redrive_batch order by id desc limit :limit)
    union
    select id from (select id from redrive_batch where final_at is null and closed_at is not null order by id limit :limit)
    union
    select value from json_each(:ids)) w on true
left join redrive_batch b on b.id = w.id
