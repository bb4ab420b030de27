-- Handled: remember that this key has had its effect, in the transaction of the effect. No answer: it already had.
insert into redrive.event_handled (target, idempotency_key, event_id, handled_at)
values (:target::text, :idempotency_key::text, :event_id::uuid, coalesce(:now::timestamptz, clock_timestamp()))
on conflict (target, idempotency_key) do nothing
returning event_id
