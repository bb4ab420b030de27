-- What waits for a person: each list is read by an index that holds little else. Since when a redrive stands still.

alter table redrive.redrive add column stopped_at timestamptz;

create index redrive_standing on redrive.redrive (id) where state in ('planning', 'planned', 'paused', 'halted');
create index outbox_compensation_failed on redrive.outbox (id) where compensation = 'failed';
create index outbox_ungrouped on redrive.outbox (id) where status = 'failed' and fingerprint is null;
create index trail_evidence on redrive.trail (at) where kind = 'evidence-failed';
