-- Schedule remove: it is gone; what it has published stays.
delete from redrive.schedule where name = :name::text
returning name
