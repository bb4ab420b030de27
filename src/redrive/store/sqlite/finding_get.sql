-- Finding: one, as it stands now; what converges it reads it here.
select id, name, key, kind, desired, actual, state from redrive_finding where id = :id
