-- Token used: written rarely, so that looking costs no writes.
update redrive.operator_token set last_used_at = coalesce(:now::timestamptz, clock_timestamp()) where id = :id::uuid
