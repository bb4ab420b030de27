-- Standing: which of these events have not ended, or are dead letters that wait for a person.
select id from redrive_outbox
where id in (select value from json_each(:ids))
  and (status in ('pending', 'in_flight', 'blocked') or (status = 'failed' and deleted_at is null))
