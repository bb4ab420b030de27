-- Handled: remember that this key has had its effect, in the transaction of the effect. No answer: it already had.
-- Differs from PostgreSQL: the caller says what time it is, and the file knows better when that clock was set back.
insert into redrive_event_handled (target, idempotency_key, event_id, handled_at)
values (:target, :idempotency_key, :event_id, max(:now, (select highest from redrive_clock)))
on conflict (target, idempotency_key) do nothing
returning event_id
