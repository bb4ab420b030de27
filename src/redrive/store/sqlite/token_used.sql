-- Token used: written rarely, so that looking costs no writes.
update redrive_operator_token set last_used_at = :now where id = :id
