-- Throttle waiting: on which of these names somebody waits.
select n.value as name from json_each(:names) n
where exists (select 1 from redrive_outbox o indexed by redrive_outbox_blocked
              where o.status = 'blocked' and o.blocked_on = n.value)
order by n.key
