-- Look: note that a reconciler is at work; with a span only when nobody has looked for so long, and then whoever did.
insert into redrive.reconciler as r (name, looked_at, looked_by)
values (:name::text, coalesce(:now::timestamptz, clock_timestamp()), :by::text)
on conflict (name) do update set looked_at = excluded.looked_at, looked_by = excluded.looked_by
where r.looked_at is null or :seconds::float8 = 0
   or r.looked_at <= excluded.looked_at - make_interval(secs => :seconds::float8)
returning r.name
