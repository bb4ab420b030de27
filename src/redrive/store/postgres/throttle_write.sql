-- Throttle write: until when the permits of a target are given away.
update redrive.throttle set free_at = :free_at::timestamptz where target = :target::text
