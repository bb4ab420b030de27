-- The rules that hold at every step, kept by the file itself: what breaks one is noted and nothing else changes.
-- lab_who() is the session of the worker whose statement runs, lab_was(x) whether x was one of its process, lab_says(x, n)
-- whether the statement is about fence n of x (or about none), lab_now() the latest time this file can know.

create table lab_effect (key text not null, event_id text not null, fence bigint not null);
create index lab_effect_event on lab_effect (event_id);
create table lab_violation (name text not null, said text not null);
create table lab_reached (name text not null);
create table lab_note (event_id text not null, kind text not null, attempts integer not null);
create table lab_due (event_id text not null, kind text not null);
create table lab_removed (id text not null, key text not null);

-- The fence

create trigger lab_fence after update of fence on redrive_outbox when new.fence < old.fence
begin insert into lab_violation values ('fence', new.id || ': the fence went from ' || old.fence || ' to ' || new.fence); end;

create trigger lab_claim_fence after update of status on redrive_outbox
when new.status = 'in_flight' and old.status = 'pending' and new.fence <= old.fence
begin insert into lab_violation values ('fence', new.id || ' was claimed and its fence stayed ' || new.fence); end;

-- Exact: by the fence it has now, and by the session that holds it. The one exception is what was swept to be settled by
-- its sweeper (lost too often, or overtime): that worker may have begun a new session since, in the same process.
create trigger lab_stale after update of status on redrive_outbox
when old.status = 'in_flight' and new.status not in ('in_flight', 'cancelled') and new.lost_count = old.lost_count
     and not (lab_says(old.id, old.fence)
              and (old.session_id = lab_who()
                   or lab_was(old.session_id) and (old.lost_count >= lab_max_lost() or old.lease_until is not null)))
begin insert into lab_violation values ('stale settle', new.id || ' became ' || new.status || ' by somebody who does not hold it'); end;

create trigger lab_begun after insert on redrive_session
begin select lab_begins(new.id); end;

create trigger lab_stale_effect after update of status on redrive_outbox
when new.status = 'delivered' and exists (select 1 from lab_effect e where e.event_id = new.id and e.fence <> new.fence)
begin insert into lab_violation values ('stale settle', new.id || ' was delivered under fence ' || new.fence || ', its effect is of another'); end;

create trigger lab_ended after update of status on redrive_outbox
when old.status in ('delivered', 'cancelled') and new.status <> old.status
begin insert into lab_violation values ('stale settle', new.id || ' was ' || old.status || ' and became ' || new.status); end;

create trigger lab_double after update of session_id on redrive_outbox
when old.status = 'in_flight' and new.status = 'in_flight' and new.session_id <> old.session_id and old.lease_until is null
     and exists (select 1 from redrive_session where id = old.session_id and ended_at is null)
begin insert into lab_violation values ('double claim', new.id || ' was taken from a session that lives'); end;

create trigger lab_swept after update of lost_count on redrive_outbox
when new.lost_count > old.lost_count
     and exists (select 1 from redrive_session where id = old.session_id and ended_at is null)
begin insert into lab_violation values ('double claim', new.id || ' was swept from a session that lives'); end;

create trigger lab_expired after update of ended_at on redrive_session
when old.ended_at is null and new.ended_at is not null and old.lease_until >= new.ended_at and old.id <> lab_who()
begin insert into lab_violation values ('double claim', 'session ' || old.id || ' was ended before its lease ran out'); end;

create trigger lab_revived after update of lease_until, ended_at on redrive_session
when old.ended_at is not null and (new.ended_at is null or new.lease_until > old.lease_until)
begin insert into lab_violation values ('double claim', 'session ' || old.id || ' had ended and was renewed'); end;

create trigger lab_lease after update of lease_until on redrive_session
when new.lease_until < old.lease_until
begin insert into lab_violation values ('double claim', 'the lease of session ' || old.id || ' was shortened'); end;

create trigger lab_ghost after update of status on redrive_outbox
when new.status = 'in_flight' and old.status <> 'in_flight'
     and exists (select 1 from redrive_session where id = new.session_id and ended_at is not null)
begin insert into lab_violation values ('double claim', new.id || ' was claimed by a session that had ended'); end;

create trigger lab_step_begun after insert on redrive_step
when new.state in ('started', 'done') and (select o.session_id from redrive_outbox o where o.id = new.event_id) <> lab_who()
begin insert into lab_violation values ('stale settle', new.event_id || ': a step was kept by somebody who does not hold it'); end;

create trigger lab_step_kept after update of state on redrive_step
when new.state = 'done' and (select o.session_id from redrive_outbox o where o.id = new.event_id) <> lab_who()
begin insert into lab_violation values ('stale settle', new.event_id || ': a step was kept by somebody who does not hold it'); end;

-- A sweeper that dies while it buries one is counted too, so the number may exceed the bound; what the bound is for,
-- that nothing is run once more, holds all the same, since only what is pending is run.
create trigger lab_lost_bound after update of lost_count on redrive_outbox
when new.status = 'pending' and new.lost_count >= lab_max_lost()
begin insert into lab_violation values ('over-run', new.id || ' was lost ' || new.lost_count || ' times'); end;

-- Time, order, identity

create trigger lab_early after update of status on redrive_outbox
when new.status = 'in_flight' and old.status = 'pending' and old.due_at > lab_now() + 5  -- µs: every process rounds for itself
begin insert into lab_violation values ('early run', new.id || ' was claimed ' || (old.due_at - lab_now()) || ' µs too early'); end;

create trigger lab_key after update of status on redrive_outbox
when new.status = 'in_flight' and old.status <> 'in_flight' and new.ordering_key is not null and exists (
    select 1 from redrive_outbox o where o.target = new.target and o.ordering_key = new.ordering_key and o.seq <> new.seq
    and (o.status = 'in_flight' or o.seq < new.seq and (
        o.status in ('pending', 'blocked') or o.status = 'failed' and o.deleted_at is null and o.passed = 0)))
begin insert into lab_violation values ('order', new.id || ' was started before its turn in key ' || new.ordering_key); end;

create trigger lab_identity after update on redrive_outbox
when new.id <> old.id or new.idempotency_key <> old.idempotency_key or new.retry_key is not old.retry_key
     or new.ordering_key is not old.ordering_key or new.correlation_id is not old.correlation_id
     or new.causation_id is not old.causation_id or new.type <> old.type or new.target <> old.target
     or new.created_at <> old.created_at
begin insert into lab_violation values ('identity', old.id || ' is not what it was'); end;

create trigger lab_retry_key after insert on redrive_outbox
when new.retry_key is not null and exists (
    select 1 from redrive_outbox o where o.target = new.target and o.retry_key = new.retry_key and o.seq <> new.seq
    and o.status in ('pending', 'in_flight', 'blocked'))
begin insert into lab_violation values ('identity', new.id || ' is a live twin of its retry key'); end;

create trigger lab_gone after delete on redrive_outbox when old.ended_at is null
begin insert into lab_violation values ('lost', old.id || ' was deleted and had not ended'); end;

-- Retention: nothing is removed that something still needs.
create trigger lab_compensation_needed before delete on redrive_outbox
when exists (select 1 from redrive_step s where s.compensation_id = old.id)
begin insert into lab_violation values ('lost', old.id || ' was deleted, and its saga is there'); end;

create trigger lab_saga_needed before delete on redrive_outbox
when exists (select 1 from redrive_step s join redrive_outbox c on c.id = s.compensation_id
             where s.event_id = old.id and c.status not in ('delivered', 'cancelled'))
begin insert into lab_violation values ('lost', old.id || ' was deleted before its compensations had ended'); end;

create trigger lab_outcome_needed before delete on redrive_outbox
when exists (select 1 from redrive_redrive_item i where i.event_id = old.id and i.state = 'released')
begin insert into lab_violation values ('lost', old.id || ' was deleted before its redrive had counted it'); end;

create trigger lab_key_needed before delete on redrive_event_handled
when exists (select 1 from redrive_outbox o where o.target = old.target and o.idempotency_key = old.idempotency_key
             and o.status in ('pending', 'in_flight', 'blocked', 'failed'))
begin insert into lab_violation values ('lost', old.idempotency_key || ' was forgotten, and an event with it can run'); end;

create trigger lab_attempts after update of attempts on redrive_outbox when new.attempts < 0
begin insert into lab_violation values ('over-run', new.id || ' has had ' || new.attempts || ' attempts'); end;

-- What is gone is remembered: events, and redrives that have lost members (these have no key).
create trigger lab_removes after delete on redrive_outbox
begin insert into lab_removed values (old.id, old.idempotency_key); end;
create trigger lab_removes_member after delete on redrive_redrive_item
begin insert into lab_removed values (old.redrive_id, ''); end;

-- Redrives and reservations

create trigger lab_released after update of state on redrive_redrive_item
when new.state = 'released' and old.state <> 'ready'
begin insert into lab_violation values ('released twice', new.event_id || ' of a redrive was ' || old.state); end;

-- A stage never has more members than its size; what was skipped counts for nothing.
create trigger lab_stage after update of state on redrive_redrive_item
when new.state = 'released' and new.stage is not null and (
    select count(*) from redrive_redrive_item i where i.redrive_id = new.redrive_id and i.stage = new.stage and i.state <> 'skipped'
) > (select coalesce(json_extract(r.ramp, '$[' || new.stage || ']'), 1) from redrive_redrive r where r.id = new.redrive_id)
begin insert into lab_violation values ('stage', 'redrive ' || new.redrive_id || ' released more than the size of stage ' || new.stage); end;

-- A gate opens by itself only when every member of its stage has ended, and none of them as it had failed before.
create trigger lab_gate after update of stage on redrive_redrive
when new.stage > old.stage and old.state = 'running' and new.gated and (
    exists (select 1 from redrive_redrive_item i where i.redrive_id = new.id and i.stage = old.stage and i.state in ('released', 'failed_same'))
    or (select count(*) from redrive_redrive_item i where i.redrive_id = new.id and i.stage = old.stage and i.state <> 'skipped')
       <> json_extract(old.ramp, '$[' || old.stage || ']'))
begin insert into lab_violation values ('gate', 'redrive ' || new.id || ' went past stage ' || old.stage || ' with members that failed or had not ended'); end;

-- A redrive releases a key in the order of the key, one at a time.
create trigger lab_redrive_order after update of state on redrive_redrive_item
when new.state = 'released' and exists (
    select 1 from redrive_outbox o join redrive_outbox e on e.target = o.target and e.ordering_key = o.ordering_key and e.seq < o.seq
    join redrive_redrive_item i on i.event_id = e.id and i.redrive_id = new.redrive_id and i.state in ('ready', 'released')
    where o.id = new.event_id and o.ordering_key is not null)
begin insert into lab_violation values ('order', new.event_id || ' was released before an earlier member of its key'); end;

create trigger lab_cycle after update of cycle on redrive_outbox
when new.cycle <> old.cycle and (old.status <> 'failed' or new.cycle <> old.cycle + 1)
begin insert into lab_violation values ('released twice', new.id || ' was ' || old.status || ' and went into cycle ' || new.cycle); end;

create trigger lab_holder after update of token on redrive_reservation
when new.token <> old.token and old.released_at is null and old.until > lab_now()
begin insert into lab_violation values ('two holders', new.resource || ' was taken from ' || old.owner); end;

-- Batches: the final notice goes out when no member is live, or when the deadline has passed. The column forced is no
-- evidence: it follows from members being live.

create trigger lab_final after update of final_at on redrive_batch
when new.final_at is not null and old.final_at is null
     and (new.deadline_at is null or new.deadline_at > lab_now() + 5)
     and exists (select 1 from redrive_outbox o where o.batch_id = new.id and o.ended_at is null)
begin insert into lab_violation values ('notice error', 'batch ' || new.id || ' said that it had ended before it had'); end;

-- The trail: what must be said in this transaction, and was said

create trigger lab_says_failed after update of status on redrive_outbox when new.status = 'failed' and old.status <> 'failed'
begin insert into lab_due values (new.id, 'dead-lettered'); end;
create trigger lab_says_cancelled after update of status on redrive_outbox when new.status = 'cancelled' and old.status <> 'cancelled'
begin insert into lab_due values (new.id, 'cancelled'); end;
create trigger lab_says_replayed after update of cycle on redrive_outbox when new.cycle > old.cycle
begin insert into lab_due values (new.id, 'replayed'); end;
create trigger lab_says_lost after update of lost_count on redrive_outbox when new.lost_count > old.lost_count
begin insert into lab_due values (new.id, 'lost'); end;
create trigger lab_says_retry after update of status on redrive_outbox
when old.status = 'in_flight' and new.status = 'pending' and new.attempts = old.attempts and new.lost_count = old.lost_count
begin insert into lab_due values (new.id, 'retry-scheduled'); end;
create trigger lab_says_blocked after update of status on redrive_outbox
when old.status = 'in_flight' and new.status = 'blocked' and new.blocked_on is not null and new.blocked_on not like 'throttle:%'
begin insert into lab_due values (new.id, 'blocked'); end;
create trigger lab_says_discarded after update of deleted_at on redrive_outbox when (new.deleted_at is null) <> (old.deleted_at is null)
begin insert into lab_due values (new.id, iif(new.deleted_at is null, 'restored', 'discarded')); end;
create trigger lab_said after insert on redrive_trail when new.event_id is not null
begin delete from lab_due where event_id = new.event_id and kind = new.kind; end;
create trigger lab_chain after insert on redrive_trail
when exists (select 1 from redrive_trail t where t.chain = new.chain and t.seq = new.seq - 1 and t.at > new.at + 3100000)
-- Two writers of a chain may differ by both their skews (1.5 s each) for the 50 ms in which a process does not look at the
-- time in the file, and that time is not written for the first 50 ms. The order is told by seq and hash, not by the time.
begin insert into lab_violation values ('trail gap', 'chain ' || new.chain || ' goes back in time'); end;

-- What was reached

create trigger lab_sees_lost after update of lost_count on redrive_outbox when new.lost_count > old.lost_count
begin insert into lab_reached values (iif(new.status = 'in_flight', 'lost too often', 'swept')); end;
create trigger lab_sees_overtime after update of lease_until on redrive_outbox when old.lease_until is not null and new.fence > old.fence
begin insert into lab_reached values ('overtime taken over'); end;
create trigger lab_sees_promoted after update of status on redrive_outbox
when old.status = 'blocked' and new.status = 'pending' and new.ordering_key is not null and old.blocked_on is null
begin insert into lab_reached values ('key promoted'); end;
create trigger lab_sees_promoted_after after update of status on redrive_outbox
when old.status = 'blocked' and new.status = 'pending' and new.ordering_key is not null and old.blocked_on is null
     and exists (select 1 from redrive_outbox o where o.target = new.target and o.ordering_key = new.ordering_key and o.lost_count > 0)
begin insert into lab_reached values ('key promoted after a crash'); end;
create trigger lab_sees_unblocked after update of blocked_on on redrive_outbox
when old.status = 'blocked' and new.status = 'pending' and old.blocked_on is not null
begin insert into lab_reached values ('unblocked'); end;
create trigger lab_sees_dead after update of status on redrive_outbox when new.status = 'failed'
begin insert into lab_reached values ('dead letter'); end;
create trigger lab_sees_cancel after update of status on redrive_outbox when new.status = 'cancelled' and old.status = 'in_flight'
begin insert into lab_reached values ('cancelled in flight'); end;
create trigger lab_sees_replay after update of cycle on redrive_outbox when new.cycle > old.cycle
begin insert into lab_reached values ('replayed'); end;
create trigger lab_sees_notice after update of final_at on redrive_batch when new.final_at is not null
begin insert into lab_reached values ('batch finished'); end;
create trigger lab_sees_force after update of forced on redrive_batch when new.forced
begin insert into lab_reached values ('batch forced'); end;
create trigger lab_sees_abort after update of state on redrive_redrive when new.state = 'aborted'
begin insert into lab_reached values (iif(new.released > 0 and new.released < new.ready, 'redrive aborted half way', 'redrive aborted')); end;
create trigger lab_sees_done after update of state on redrive_redrive when new.state = 'done'
begin insert into lab_reached values ('redrive done'); end;
create trigger lab_sees_undo after insert on redrive_outbox when new.type = 'redrive.compensate'
begin insert into lab_reached values ('compensated'); end;
create trigger lab_sees_late_step after insert on redrive_step when new.state = 'compensating'
begin insert into lab_reached values ('late step'); end;
create trigger lab_sees_throttle after update of blocked_on on redrive_outbox when new.blocked_on like 'throttle:%'
begin insert into lab_reached values ('throttled'); end;
create trigger lab_sees_open after update of state on redrive_dependency when new.state <> old.state
begin insert into lab_reached values ('dependency ' || new.state); end;
