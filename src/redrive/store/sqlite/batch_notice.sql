-- Make the events that a batch's notices will be; they are published when the time has come.
insert into redrive_batch_notice (id, batch_id, kind, type, target, queue, priority, generation)
values (:id, :batch_id, :kind, :type, :target, :queue, :priority, :generation)
