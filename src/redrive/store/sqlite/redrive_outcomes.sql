-- Outcomes: write down how released members ended.
-- Fingerprints of two versions cannot be compared: then the same type of exception is the same failure.
-- Differs from PostgreSQL: the counters are brought up by redrive_count.
update redrive_redrive_item as i
set state = case
        when o.id is null then 'skipped'
        when o.status = 'delivered' then 'delivered'
        when o.status = 'cancelled' then 'skipped'
        when o.fingerprint is i.fingerprint then 'failed_same'
        when substr(o.fingerprint, 1, instr(o.fingerprint, ':')) <> substr(i.fingerprint, 1, instr(i.fingerprint, ':'))
            and o.fingerprint like '%:%' and i.fingerprint like '%:%'
            and exists (select 1 from redrive_failure_group g where g.fingerprint = i.fingerprint and g.error_type = o.error_type)
            then 'failed_same'
        else 'failed_other' end,
    reason = case when o.id is null then 'the event is gone' when o.status = 'cancelled' then 'it was cancelled' end,
    ended_at = coalesce(o.ended_at, :now)
from (select x.redrive_id, x.position, x.event_id, x.cycle from redrive_redrive_item x indexed by redrive_redrive_item_released
      where x.redrive_id = :id and x.state = 'released') w
left join redrive_outbox o on o.id = w.event_id
where i.redrive_id = w.redrive_id and i.position = w.position
  and (o.id is null or o.status in ('delivered', 'failed', 'cancelled') or o.cycle > w.cycle + 1)
returning state
