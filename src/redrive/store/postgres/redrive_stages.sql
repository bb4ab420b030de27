-- Stages: the members of each stage of a ramp, by what became of them.
select stage, state, count(*) as n from redrive.redrive_item
where redrive_id = :id::uuid and stage < :stages::int and stage is not null
group by stage, state
