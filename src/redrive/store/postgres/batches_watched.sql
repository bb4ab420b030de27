-- Batches watched: the newest, the oldest that are closed and have not ended, and those that are asked for.
select m.now, b.id, b.closed_at, b.first_at, b.final_at
from (select coalesce(:now::timestamptz, clock_timestamp()) as now) m
left join (
    (select id, closed_at, first_at, final_at from redrive.batch order by id desc limit :limit::int)
    union
    (select id, closed_at, first_at, final_at from redrive.batch
     where final_at is null and closed_at is not null order by id limit :limit::int)
    union
    (select id, closed_at, first_at, final_at from redrive.batch where id = any(:ids::uuid[]))) b on true
