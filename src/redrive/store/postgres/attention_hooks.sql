-- Attention, hooks: dead letters that stand although their on_dead_letter hook failed, of the latest 1,000 failures; what
-- was replayed since then had its hook called again, or has come through.
select t.event_id, o.target, t.at as since
from (select event_id, at from redrive.trail where kind = 'evidence-failed' order by at desc limit 1000) t
join redrive.outbox o on o.id = t.event_id
where o.status = 'failed' and o.deleted_at is null
  and not exists (select from redrive.trail r where r.event_id = t.event_id and r.kind = 'replayed' and r.at >= t.at)
order by t.at desc
