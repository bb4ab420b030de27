-- Promote: an event of this key has left the line or the flight; the first in line may go. The function does it.
select redrive.promote(array[:target::text], array[:ordering_key::text], :now::timestamptz)
