-- Stage: what became of the members released in one stage. They lie before the first that is ready.
select state, count(*) as n from redrive_redrive_item
where redrive_id = :id and stage = :stage and position < coalesce(
    (select min(r.position) from redrive_redrive_item r indexed by redrive_redrive_item_ready
     where r.redrive_id = :id and r.state = 'ready'),
    9223372036854775807)
group by state
