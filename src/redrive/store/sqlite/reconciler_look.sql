-- Look: note that a reconciler is at work; with a span only when nobody has looked for so long, and then whoever did.
insert into redrive_reconciler (name, looked_at, looked_by) values (:name, :now, :by)
on conflict (name) do update set looked_at = excluded.looked_at, looked_by = excluded.looked_by
where redrive_reconciler.looked_at is null or :seconds = 0
   or redrive_reconciler.looked_at <= excluded.looked_at - cast(:seconds * 1000000 as integer)
returning name
