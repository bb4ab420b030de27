-- Stage: what became of the members released in one stage.
select state, count(*) as n from redrive.redrive_item where redrive_id = :id::uuid and stage = :stage::int group by state
