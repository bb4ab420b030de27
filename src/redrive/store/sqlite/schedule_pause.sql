-- Schedule pause: no more ticks. No answer: there is no such schedule, or it is paused already.
update redrive_schedule set paused_at = :now, paused_by = :by
where name = :name and paused_at is null
returning name
