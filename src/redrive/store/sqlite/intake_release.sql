-- Intake release: give the lease up. Guard: only our own.
delete from redrive_intake_lease where name = :name and holder = :holder
