-- Blocked counts: how many events wait for each of these names, counted up to 1,001.
select w.value as name,
       (select count(*) from (select 1 from redrive_outbox o indexed by redrive_outbox_blocked
                              where o.status = 'blocked' and o.blocked_on = w.value limit 1001)) as n
from json_each(:names) w
