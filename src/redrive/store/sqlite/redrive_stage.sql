-- Stage: what became of the members released in one stage.
select state, count(*) as n from redrive_redrive_item where redrive_id = :id and stage = :stage group by state
