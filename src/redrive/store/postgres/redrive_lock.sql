-- Lock: take a running redrive for one tick; whoever finds it taken leaves it alone.
select r.id from redrive.redrive r where r.id = :id::uuid and r.state = 'running' for update skip locked
