-- Hardening: changes that an outside review of version 15 asked for. Each section belongs to one area and can be read alone.
-- Like every migration it only adds: workers of version 15 go on beside it.

-- Redrives: stages, order and gates.

-- Keys: the order of a key, and when it is free.

-- Claims and settles: a row that somebody else has locked.

-- Sessions: work of a process that is gone.

-- Retention: rows that are still needed.

-- Events that share an idempotency key, so that a handled key is kept while one of them could still run. Most events have
-- a key of their own, their id, and cost nothing here.
create index outbox_shared_key on redrive.outbox (target, idempotency_key)
    where idempotency_key <> id::text and status in ('pending', 'in_flight', 'blocked', 'failed');

-- Steps go with their event, and so do the payloads it had before it was edited: nobody could find those any more.
create or replace function redrive.forget_steps() returns trigger language plpgsql as $$
begin
    delete from redrive.step s using gone g where s.event_id = g.id;
    delete from redrive.payload_revision r using gone g where r.event_id = g.id;
    return null;
end $$;
delete from redrive.payload_revision r where not exists (select from redrive.outbox o where o.id = r.event_id);

-- Publishing by SQL: the limits of publish.

-- Dependencies, failures and classes.

-- Write down how the released members of a redrive ended. Guard: whoever waited for the redrive must look again.
-- Fingerprints of two versions cannot be compared: then the same type of exception is the same failure.
create or replace function redrive.note_outcomes(p_redrive_id uuid, p_now timestamptz) returns void language sql volatile
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
    select from redrive.redrive where id = p_redrive_id for update;
    with ended as (
        update redrive.redrive_item i
        set state = case
                when o.id is null then 'skipped'
                when o.status = 'delivered' then 'delivered'
                when o.status = 'cancelled' then 'skipped'
                when o.fingerprint is not distinct from i.fingerprint then 'failed_same'
                when split_part(o.fingerprint, ':', 1) <> split_part(i.fingerprint, ':', 1)
                    and o.fingerprint like '%:%' and i.fingerprint like '%:%'
                    and exists (select from redrive.failure_group g
                                where g.fingerprint = i.fingerprint and g.error_type = o.error_type)
                    then 'failed_same'
                else 'failed_other' end,
            reason = case when o.id is null then 'the event is gone' when o.status = 'cancelled' then 'it was cancelled' end,
            ended_at = coalesce(o.ended_at, p_now, clock_timestamp())
        from (select x.ctid as place, x.event_id, x.cycle from redrive.redrive_item x  -- nobody moves it: we hold the redrive
              where x.redrive_id = p_redrive_id and x.state = 'released') w
        left join lateral (select x.id, x.status, x.cycle, x.fingerprint, x.error_type, x.ended_at from redrive.outbox x
                           where x.id = w.event_id offset 0) o on true
        where i.ctid = w.place and i.state = 'released'
          and (o.id is null or o.status in ('delivered', 'failed', 'cancelled') or o.cycle > w.cycle + 1)
        returning i.state
    )
    update redrive.redrive d set
        delivered = d.delivered + (select count(*) from ended where state = 'delivered'),
        failed_same = d.failed_same + (select count(*) from ended where state = 'failed_same'),
        failed_other = d.failed_other + (select count(*) from ended where state = 'failed_other'),
        skipped = d.skipped + (select count(*) from ended where state = 'skipped')
    where d.id = p_redrive_id and exists (select from ended)
$$;
