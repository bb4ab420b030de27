-- Transport gone: forget what a worker said that has stopped, and what nobody has confirmed for a day.
delete from redrive_transport_state where worker = :worker or written_at < :now - 86400000000
