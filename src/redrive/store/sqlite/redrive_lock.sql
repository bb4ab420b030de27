-- Lock: take a redrive for one tick; whoever finds it taken leaves it alone.
select r.id from redrive_redrive r where r.id = :id 
