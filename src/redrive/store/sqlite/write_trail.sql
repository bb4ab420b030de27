-- Write trail: append one entry; the hash was computed from the one before it, in this transaction.
insert into redrive_trail (chain, seq, at, event_id, kind, source, actor, detail, hash)
values (:chain, :seq, :now, :event_id, :kind, :source, :actor, :detail, :hash)
