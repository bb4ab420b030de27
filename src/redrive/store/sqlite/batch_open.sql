-- Open a batch. The notices it will send are made beside it (batch_notice.sql).
insert into redrive_batch (id, name, source, correlation_id, deadline_at, leftovers, opened_at)
values (:id, :name, :source, :correlation_id, coalesce(:deadline_at, :now + cast(:deadline * 1000000 as integer)), :leftovers, :now)
returning id
