-- Stage: the members of one stage of a ramp, by what became of them.
select state, count(*) as n from redrive.redrive_item
where redrive_id = :id::uuid and stage = :stage::int and stage is not null
group by state
