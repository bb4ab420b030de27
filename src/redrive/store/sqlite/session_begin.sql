-- Session begin: a worker process says that it is here; its lease covers everything it will claim.
insert into redrive_session (id, name, host, pid, queues, targets, concurrency, generation, process,
                             started_at, seen_at, lease_until)
values (:id, :name, :host, :pid, :queues, :targets, :concurrency, :generation, :process,
        :now, :now, :now + :lease)
