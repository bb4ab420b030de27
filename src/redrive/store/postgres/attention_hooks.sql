-- Attention, hooks: what hooks should have written and is missing, of the latest 1,000 failures. Of dead letters as long
-- as they stand; what was replayed since then had its hook called again, or has come through. Of retries for a day.
select t.event_id, o.target, t.hook, t.at as since
from (select event_id, at, detail::json ->> 'hook' as hook from redrive.trail
      where kind = 'evidence-failed' order by at desc limit 1000) t
join redrive.outbox o on o.id = t.event_id
where o.deleted_at is null
  and case when t.hook = 'on_retry' then t.at > redrive.moment(:now::timestamptz) - interval '1 day'
      else o.status = 'failed' and not exists (
          select from redrive.trail r where r.event_id = t.event_id and r.kind = 'replayed' and r.at >= t.at) end
order by t.at desc
