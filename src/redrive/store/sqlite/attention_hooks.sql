-- Attention, hooks: what hooks should have written and is missing, of the latest 1,000 failures. Of dead letters as long
-- as they stand; what was replayed since then had its hook called again, or has come through. Of retries for a day.
-- Differs from PostgreSQL: `+`, or SQLite might read all dead letters.
select t.event_id, o.target, t.hook, t.at as since
from (select event_id, at, json_extract(detail, '$.hook') as hook
      from redrive_trail indexed by redrive_trail_evidence
      where kind = 'evidence-failed' order by at desc limit 1000) t
join redrive_outbox o on o.id = t.event_id
where o.deleted_at is null
  and case when t.hook = 'on_retry' then t.at > :now - 86400000000
      else +o.status = 'failed' and not exists (
          select 1 from redrive_trail r where r.event_id = t.event_id and r.kind = 'replayed' and r.at >= t.at) end
order by t.at desc
