-- Make the events that a batch's notices will be; they are published when the time has come.
insert into redrive.batch_notice (id, batch_id, kind, type, target, queue, priority, generation)
values (:id::uuid, :batch_id::uuid, :kind::text, :type::text, :target::text, :queue::text, :priority::smallint, :generation::bigint)
