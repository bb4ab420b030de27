-- Event: one row, whole. The list of columns is EVENT_COLUMNS in store/base.py.
select {columns} from redrive_outbox where id = :id
