-- Schedule pause: no more ticks. No answer: there is no such schedule, or it is paused already.
update redrive.schedule set paused_at = coalesce(:now::timestamptz, clock_timestamp()), paused_by = :by::text
where name = :name::text and paused_at is null
returning name
