-- Stages: what became of the members released in each stage, as far as they lie before a position.
select stage, state, count(*) as n, min(released_at) as began_at, max(ended_at) as ended_at
from redrive_redrive_item
where redrive_id = :id and position <= :until and stage is not null
group by stage, state order by stage
