-- Answer: what a call with this key was answered; no status while it is under way.
select request, status, headers, body from redrive.answer where caller = :caller::text and key = :key::text
