-- Intake begun: where a consumer group began to take; no row: it never has.
select topic_id, positions from redrive_intake_beginning where name = :name
