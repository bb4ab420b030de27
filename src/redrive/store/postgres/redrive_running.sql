-- Running: the redrives that want a tick: those that run, and those whose released members have yet to end.
select id from redrive.redrive where state = 'running'
union
select redrive_id from redrive.redrive_item where state = 'released'
limit 100
