-- What waits for a person: each list is read by an index that holds little else. Since when a redrive stands still.

alter table redrive_redrive add column stopped_at integer;

create index redrive_redrive_standing on redrive_redrive (id) where state in ('planning', 'planned', 'paused', 'halted');
create index redrive_outbox_compensation_failed on redrive_outbox (id) where compensation = 'failed';
create index redrive_outbox_ungrouped on redrive_outbox (id) where status = 'failed' and fingerprint is null;
create index redrive_trail_evidence on redrive_trail (at) where kind = 'evidence-failed';
