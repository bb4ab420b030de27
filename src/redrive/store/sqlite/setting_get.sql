-- Setting: what holds for everybody who works on this database.
select value, set_by, set_at from redrive_setting where name = :name
