-- Events: a page of them, newest first; the filters that were asked for are filled in.
select {columns} from redrive.outbox where true {where} order by id desc limit :limit
