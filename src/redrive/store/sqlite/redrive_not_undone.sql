-- Not undone: members of a plan that have finished steps with a compensation which has not run, the first few of them.
select i.event_id from redrive_redrive_item i join redrive_outbox o on o.id = i.event_id
where i.redrive_id = :id and i.state = 'ready' and exists (
    select 1 from redrive_step s where s.event_id = o.id and s.cycle >= o.steps_from and s.compensation_id is not null
    and s.state in ('started', 'done'))
order by i.position limit :limit
