-- Events: a page of them, newest first; the filters that were asked for are added at the end.
select {columns} from redrive_outbox where true
