-- Digest: a chunk of members in order, as the text that is hashed.
select string_agg(event_id::text || ':' || cycle, ',' order by position) as members
from redrive.redrive_item where redrive_id = :id::uuid and position > :after::bigint
