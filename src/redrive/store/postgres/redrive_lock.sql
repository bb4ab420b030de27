-- Lock: take a redrive for one tick; whoever finds it taken leaves it alone.
select r.id from redrive.redrive r where r.id = :id::uuid for update skip locked
