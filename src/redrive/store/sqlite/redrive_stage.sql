-- Stage: the members of one stage of a ramp, by what became of them.
select state, count(*) as n from redrive_redrive_item indexed by redrive_redrive_item_stage
where redrive_id = :id and stage = :stage and stage is not null
group by state
