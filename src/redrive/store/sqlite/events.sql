-- Events: a page of them, newest first; the filters that were asked for are filled in.
-- Differs from PostgreSQL: without statistics the planner must be told (`+id`) to gather a few rows by their own index.
select {columns} from redrive_outbox where true {where} order by {order} desc limit :limit
