-- Mark handled: remember that this key has had its effect, in the transaction of the effect. False: it already had.
-- An error (lock_not_available) after 5 seconds in which another transaction has kept the key and not ended.
-- Differs from SQLite: there a transaction has the whole file, so nobody waits for a key.
select redrive.mark_handled(
    :target::text, :idempotency_key::text, :event_id::uuid, :fence::bigint, :now::timestamptz)
