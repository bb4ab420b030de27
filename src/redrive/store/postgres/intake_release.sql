-- Intake release: give the lease up. Guard: only our own.
delete from redrive.intake_lease where name = :name::text and holder = :holder::text
