-- Stages: the members of each stage of a ramp, by what became of them.
select stage, state, count(*) as n from redrive_redrive_item indexed by redrive_redrive_item_stage
where redrive_id = :id and stage < :stages and stage is not null
group by stage, state
