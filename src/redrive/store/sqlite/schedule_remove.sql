-- Schedule remove: it is gone; what it has published stays.
delete from redrive_schedule where name = :name
returning name
