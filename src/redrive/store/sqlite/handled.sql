-- Handled: remember that this key has had its effect, in the transaction of the effect. No answer: it already had.
insert into redrive_event_handled (target, idempotency_key, event_id, handled_at)
values (:target, :idempotency_key, :event_id, :now)
on conflict (target, idempotency_key) do nothing
returning event_id
