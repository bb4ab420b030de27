-- Intake lease: take it when it is free, renew it when it is ours; no row: another has it.
insert into redrive.intake_lease as l (name, holder, until)
values (:name::text, :holder::text, coalesce(:now::timestamptz, clock_timestamp()) + make_interval(secs => :seconds::float8))
on conflict (name) do update set holder = excluded.holder, until = excluded.until
where l.holder = excluded.holder or l.until < coalesce(:now::timestamptz, clock_timestamp())
returning name
