-- Throttle write: until when the permits of a target are given away.
update redrive_throttle set free_at = :free_at where target = :target
