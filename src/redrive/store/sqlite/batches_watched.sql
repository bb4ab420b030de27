-- Batches watched: the newest, the oldest that are closed and have not ended, and those that are asked for.
select m.now, b.id, b.closed_at, b.first_at, b.final_at
from (select :now as now) m
left join (
    select * from (select id, closed_at, first_at, final_at from redrive_batch order by id desc limit :limit)
    union
    select * from (select id, closed_at, first_at, final_at from redrive_batch
                   where final_at is null and closed_at is not null order by id limit :limit)
    union
    select id, closed_at, first_at, final_at from redrive_batch where id in (select value from json_each(:ids))) b on true
