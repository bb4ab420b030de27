-- Running: the redrives that want a tick.
select id from redrive.redrive where state = 'running' order by id limit 100
